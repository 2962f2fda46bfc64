// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "terse/executor/concept.hpp"

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

/// ||x||_2 over a unit. Like all that is built on squares it reads magnitudes below 2^-75 as 0.
struct EuclideanNorm : SumOfSquares {
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? std::sqrt(total[0]) : 0.0F;
  }
};

/// ||x||_2 / sqrt(n) over a unit's n real elements: 1-bit Adam's scale. Not a contraction in one shot, but
/// the better tracker in a feedback loop.
struct RootMeanSquare : SumOfSquares {
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? std::sqrt(total[0] / static_cast<float>(count)) : 0.0F;
  }
};

/// 2 ||x||_2 / sqrt(n): a code book's end where a few large elements shall not coarsen it for all the others.
struct TwoRootMeanSquares : SumOfSquares {
  static constexpr float largest =
      0x1p66F;  ///< what no scale of a finite message exceeds, where that is not 2^64
  TERSE_HD static float finish(const float* total, index_t count) {
    return 2 * RootMeanSquare::finish(total, count);
  }
};

/// ||x||_1 / n over a unit's n real elements: EF-signSGD's scale, a contraction for every input.
struct MeanAbs : SumOfSquares {
  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = magnitude(x); }
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? total[0] / static_cast<float>(count) : 0.0F;
  }
};

/// max |x| over a unit.
struct MaxAbs {
  static constexpr int width = 1;
  static constexpr float initial = 0;
  using Scale = float;

  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = magnitude(x); }
  TERSE_HD static float join(float a, float b) { return a > b ? a : b; }
  TERSE_HD static float finish(const float* total, index_t count) { return count > 0 ? total[0] : 0.0F; }
};

/// min(max |x|, 2.5 sigma), sigma^2 = sum x^2 / n: the largest magnitude after TernGrad's clipping.
/// Source: Wen et al., "TernGrad", NeurIPS 2017, section 4 (layer-wise ternarizing and gradient clipping).
struct ClippedMaxAbs {
  static constexpr int width = 2;
  static constexpr float initial = 0;
  using Scale = float;

  /// There is one `join` for both components, so their signs tell them apart: a sum is >= 0, a maximum stands
  /// negated.
  TERSE_HD static void terms(float x, float (&term)[2]) {
    term[0] = x * x;
    term[1] = -magnitude(x);
  }
  TERSE_HD static float join(float a, float b) {
    const float least = keep_if(a < b, a, b);
    return keep_if(least < 0, least) + (keep_if(a > 0, a) + keep_if(b > 0, b));
  }
  TERSE_HD static float finish(const float* total, index_t count) {
    const float clip = 2.5F * RootMeanSquare::finish(total, count);
    const float largest = count > 0 ? -total[1] : 0.0F;
    return clip < largest ? clip : largest;
  }
};

/// The least and the largest element of a unit.
struct MinAndMax {
  static constexpr int width = 2;
  static constexpr float initial = -std::numeric_limits<float>::max();
  struct Scale {
    float low = 0, high = 0;
    bool operator==(const Scale&) const = default;
  };

  TERSE_HD static void terms(float x, float (&term)[2]) {
    term[0] = x;
    term[1] = -x;
  }
  TERSE_HD static float join(float a, float b) { return a > b ? a : b; }
  TERSE_HD static Scale finish(const float* total, index_t count) {
    return count > 0 ? Scale{-total[1], total[0]} : Scale{};
  }
};

/// The mean of x < 0 and that of x >= 0; 0 for the mean of none.
/// Source: Seide et al., "1-bit SGD", Interspeech 2014, section 3.
struct TwoMeans {
  static constexpr int width = 4;
  static constexpr float initial = 0;
  struct Scale {
    float low = 0, high = 0;
    bool operator==(const Scale&) const = default;
  };

  /// Both sides are counted: a difference from the whole would lose a few elements among more than 2^24.
  TERSE_HD static void terms(float x, float (&term)[4]) {
    term[0] = (x - magnitude(x)) / 2;
    term[1] = keep_if(x < 0, 1.0F);
    term[2] = (x + magnitude(x)) / 2;
    term[3] = 1 - term[1];
  }
  TERSE_HD static float join(float a, float b) { return a + b; }
  TERSE_HD static Scale finish(const float* total, index_t count) {
    if (count == 0) return {};
    return {total[1] > 0 ? total[0] / total[1] : 0.0F, total[3] > 0 ? total[2] / total[3] : 0.0F};
  }
};

/// No scale: nothing is measured, nothing travels.
struct Unscaled {
  static constexpr int width = 1;
  static constexpr float initial = 0;
  struct Scale {
    bool operator==(const Scale&) const = default;
  };

  TERSE_HD static void terms(float, float (&term)[1]) { term[0] = 0; }
  TERSE_HD static float join(float a, float) { return a; }
  TERSE_HD static Scale finish(const float*, index_t) { return {}; }
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
