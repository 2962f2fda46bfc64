// SPDX-License-Identifier: Apache-2.0

// A quantizer of one's own through all laws: whether it keeps what it says, and if not, on which few numbers.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "terse/compressor/packed.hpp"
#include "terse/executor/statistic.hpp"
#include "terse/laws/check.hpp"

/// Two bits an element: -1, -1/3, 1/3 or 1 times the largest magnitude of 64, whichever is nearest.
struct FourThirds {
  using Statistic = terse::MaxAbs;
  static constexpr int bits = 2;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool tracks = true;  // errors are below a third of the largest magnitude

  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t) {
    const float bound = scale * (2.0F / 3);
    if (value < 0) return value < -bound ? 0U : 1U;
    return value > bound ? 3U : 2U;
  }
  TERSE_HD static float value(std::uint32_t code, float scale) {
    return scale * ((static_cast<float>(code) - 1.5F) * (2.0F / 3));
  }
};

/// The same, with a claim that zeros between large values don't allow.
struct TooBold : FourThirds {
  static constexpr bool contractive = true;
};

int main() {
  const terse::laws::Report report = terse::laws::check<terse::Packed<FourThirds, terse::PerBlock<64>>>();
  std::fputs(report.text().c_str(), stdout);
  const terse::laws::Report other = terse::laws::check<terse::Packed<TooBold, terse::PerBlock<64>>>();
  std::fputs(other.text().c_str(), stdout);
  return report && other.broke("contraction") ? EXIT_SUCCESS : EXIT_FAILURE;
}
