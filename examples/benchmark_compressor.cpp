// SPDX-License-Identifier: Apache-2.0

// A quantizer of one's own, benchmarked: one line. Try --benchmark_filter='/4194304$' and see what it prints in
// yardsticks; 1 is the time of x[i] *= a.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <terse/bench/compressor.hpp>
#include <terse/compressor/packed.hpp>
#include <terse/executor/statistic.hpp>

/// Three levels, -s, 0 and s, s the mean magnitude of 1024 elements; what is below s / 2 is 0.
struct ThreeLevels {
  using Statistic = terse::MeanAbs;
  static constexpr int bits = 2;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;

  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t) {
    // Without a branch, so that it becomes vector instructions.
    return 1U + static_cast<std::uint32_t>(value >= scale / 2) -
           static_cast<std::uint32_t>(value <= -scale / 2);
  }
  TERSE_HD static float value(std::uint32_t code, float scale) {
    return scale * (static_cast<float>(static_cast<std::int32_t>(code)) - 1);
  }
};

TERSE_BENCHMARK_COMPRESSOR(terse::Packed<ThreeLevels, terse::PerBlock<1024>>);

BENCHMARK_MAIN();
