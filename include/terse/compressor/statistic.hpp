// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/compressor/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Sum of squares of a unit, as it is: for norms.
struct SumOfSquares {
  static constexpr int width = 1;
  static constexpr float initial = 0;
  using Scale = float;

  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = x * x; }
  TERSE_HD static float join(float a, float b) { return a + b; }
  TERSE_HD static float finish(const float* total, index_t count) { return count > 0 ? total[0] : 0.0F; }
};

/// ||x||_2 / sqrt(n) over a unit's n real elements: 1-bit Adam's scale. Not a contraction in one shot, but
/// the better tracker in a feedback loop.
struct RootMeanSquare : SumOfSquares {
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? std::sqrt(total[0] / static_cast<float>(count)) : 0.0F;
  }
};

/// ||x||_1 / n over a unit's n real elements: EF-signSGD's scale, a contraction for every input.
struct MeanAbs : SumOfSquares {
  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = magnitude(x); }
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? total[0] / static_cast<float>(count) : 0.0F;
  }
};

TERSE_NUMERICS_END

/// One scale for each segment; where a segment straddles chunks and only part of it is at hand, for that
/// part.
struct PerSegment {
  static constexpr Units units() { return {}; }
};

/// One scale for each N elements, counted from the start of a piece (segment x chunk). Saves the pass that a
/// longer unit needs before the first of its bits can be written.
template <index_t N>
struct PerBlock {
  static_assert(N > 0 && N % alignment == 0, "terse: PerBlock<N> takes a positive multiple of 64 elements");
  static constexpr Units units() { return {N, false}; }
};

/// One scale for everything that is encoded together.
struct Whole {
  static constexpr Units units() { return {0, true}; }
};

}  // namespace terse
