// SPDX-License-Identifier: Apache-2.0
// All of bench_gpu but its times where there is no device: on the executor that emulates one.

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "measure.hpp"
#include "self_check.hpp"
#include "terse/device/emulated.hpp"

namespace {

struct HostClock {
  static double time(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
};

}  // namespace

/// check_emulated [FILE]: also writes there what bench_gpu --json would, with figures that mean nothing.
int main(int argc, char** argv) {
  using namespace terse::bench::gpu;
  const terse::executor::emulated ex;
  std::size_t compared = 0;
  const std::string difference = difference_from_host(ex, 2 * 4096 + 130, 0, compared);
  if (!difference.empty()) {
    std::printf("host and emulated device differ: %s\n", difference.c_str());
    return 1;
  }
  std::printf("host and emulated device agree in %zu results\n\n", compared);

  HostClock clock;
  Report report(clock, 0, 2, "");
  measure_steps(ex, report, 16384);
  measure_compressors(ex, report, 16384);
  measure_low_rank(ex, report, 64, 128);
  const std::string about =
      "\"device\": {\"name\": \"emulated, figures mean nothing\", \"major\": 0, \"minor\": 0, "
      "\"multiprocessors\": 1, "
      "\"memory_bytes\": 1, \"l2_bytes\": 1, \"driver\": 0, \"runtime\": 0}, \"elements\": 16384, "
      "\"results_compared\": " +
      std::to_string(compared);
  if (argc > 1 && !report.write(argv[1], about)) {
    std::printf("cannot write %s\n", argv[1]);
    return 1;
  }
}
