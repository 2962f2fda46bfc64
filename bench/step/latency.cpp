// SPDX-License-Identifier: Apache-2.0
// Full-precision steps of Adam over threads, small ones to large ones: all pairs beside a ring. Prints a Markdown table. Both
// take turns; the best of 20 rounds of 50 steps counts.
//
//   bench_latency [RANKS,...]     2,4 unless told

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/thread.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using BySize = terse::Adam<terse::BySize<>>;

struct Best {
  double pairs = std::numeric_limits<double>::infinity(), ring = pairs;
};

Best measure(int ranks, terse::index_t n) {
  Best best;
  terse::ThreadGroup(ranks).run([&](terse::Threads& transport) {
    const auto layout = terse::Layout::flat(n);
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 0.1F);
    terse::Optimizer pairs{BySize{.topology = {.from = n + 1}}, transport, layout};
    terse::Optimizer ring{BySize{.topology = {.from = 0}}, transport, layout};
    const auto time = [&](auto& optimizer, double& least) {
      const auto begin = Clock::now();
      for (int step = 0; step < 50; ++step) optimizer.step(x, g);
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / 50;
      if (transport.rank() == 0) least = std::min(least, seconds);
    };
    for (int round = 0; round < 20; ++round) {
      time(pairs, best.pairs);
      time(ring, best.ring);
    }
  });
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  std::printf(
      "| ranks | parameters | all pairs, us | ring, us | ring / all pairs |\n|---:|---:|---:|---:|---:|\n");
  std::istringstream list(argc > 1 ? argv[1] : "2,4");
  for (std::string ranks; std::getline(list, ranks, ',');)
    for (const terse::index_t n : {10'240, 65'536, 131'072, 262'144, 524'288, 1'048'576}) {
      const Best best = measure(std::max(1, std::atoi(ranks.c_str())), n);
      std::printf("| %s | %lld | %.1f | %.1f | %.2f |\n", ranks.c_str(), static_cast<long long>(n),
                  best.pairs * 1e6, best.ring * 1e6, best.ring / best.pairs);
      std::fflush(stdout);
    }
  return EXIT_SUCCESS;
}
