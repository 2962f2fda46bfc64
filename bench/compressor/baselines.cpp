// SPDX-License-Identifier: Apache-2.0
// What is usually written, beside the library's compressors.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "baseline.hpp"
#include "plain.hpp"
#include "terse/bench/registry.hpp"
#include "terse/bench/samples.hpp"
#include "terse/bench/yardstick.hpp"

namespace {

using namespace terse;
using namespace terse::bench;

struct Subject {
  std::unique_ptr<Baseline> baseline;
  const float* samples;
  std::uint64_t step = 0;
  double error = 0;

  Subject(BaselineMaker make, index_t n) : baseline(make(n)), samples(normal_samples(n + spare)) {
    encode();
    float* decoded = playground(n);
    std::fill_n(decoded, n, 0.0F);
    baseline->accumulate(decoded, -1);
    error = relative_error(samples, decoded, n);
  }
  void encode() { baseline->encode(at_step(samples, step++)); }
};

bool add_baseline(const std::string& name, BaselineMaker make) {
  if (make == nullptr) return false;
  for (const index_t n : sizes) {
    add(name, "encode_residual", n, [=](benchmark::State& state) {
      const auto subject = reused<Subject>(name, n, make, n);
      measure(state, n, [&] { subject->encode(); });
      state.counters["bits"] = 8 * static_cast<double>(subject->baseline->bytes()) / static_cast<double>(n);
      state.counters["error"] = subject->error;
    });
    add(name, "accumulate", n, [=](benchmark::State& state) {
      const auto subject = reused<Subject>(name, n, make, n);
      measure(state, n, [&] { subject->baseline->accumulate(playground(n), 1e-3F); });
    });
  }
  return true;
}

[[maybe_unused]] const bool added =
    (add_baseline("baseline: 1 bit, a pass for each operation", plain_one_bit()),
     add_baseline("baseline: a byte for each sign", plain_sign_bytes()),
     add_baseline("baseline: 8 bits, a pass for each operation", plain_eight_bits()),
     add_baseline("baseline: top 1 %, heap of pairs", heap_top_k()),
     add_baseline("baseline: top 1 %, nth_element", nth_element_top_k()),
     add_baseline("baseline: 1 bit, LibTorch's calls", libtorch_one_bit()));

}  // namespace
