// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "terse/executor/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The sum of squares of a unit, unscaled: for norms.
struct SumOfSquares {
  static constexpr int width = 1;
  static constexpr float initial = 0;
  using Scale = float;

  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = x * x; }
  TERSE_HD static float join(float a, float b) { return a + b; }
  TERSE_HD static float finish(const float* total, index_t count) { return count > 0 ? total[0] : 0.0F; }
};

/// The norm ||x||_2 of a unit. As in all statistics built on squares, magnitudes below 2^-75 count as 0.
struct EuclideanNorm : SumOfSquares {
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? std::sqrt(total[0]) : 0.0F;
  }
};

/// The scale of 1-bit Adam: ||x||_2 / sqrt(n) over a unit's n real elements. It is not a contraction for a single
/// message, but tracks better under error feedback.
struct RootMeanSquare : SumOfSquares {
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? std::sqrt(total[0] / static_cast<float>(count)) : 0.0F;
  }
};

/// The largest level of a codebook, 2 ||x||_2 / sqrt(n), so that a few large elements don't make the levels of all
/// others coarse.
struct TwoRootMeanSquares : SumOfSquares {
  static constexpr float largest = 0x1p66F;  ///< bound of the scales of finite messages, if it is not 2^64
  TERSE_HD static float finish(const float* total, index_t count) {
    return 2 * RootMeanSquare::finish(total, count);
  }
};

/// The scale of EF-signSGD: ||x||_1 / n over a unit's n real elements, a contraction for every input.
struct MeanAbs : SumOfSquares {
  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = magnitude(x); }
  TERSE_HD static float finish(const float* total, index_t count) {
    return count > 0 ? total[0] / static_cast<float>(count) : 0.0F;
  }
};

/// The largest magnitude, max |x|, of a unit.
struct MaxAbs {
  static constexpr int width = 1;
  static constexpr float initial = 0;
  using Scale = float;

  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = magnitude(x); }
  TERSE_HD static float join(float a, float b) { return a > b ? a : b; }
  TERSE_HD static float finish(const float* total, index_t count) { return count > 0 ? total[0] : 0.0F; }
};

/// The largest magnitude after TernGrad's clipping: min(max |x|, 2.5 sigma), sigma^2 = sum x^2 / n.
/// Source: Wen et al., "TernGrad", NeurIPS 2017, section 4 (layer-wise ternarizing and gradient clipping).
struct ClippedMaxAbs {
  static constexpr int width = 2;
  static constexpr float initial = 0;
  using Scale = float;

  /// Makes a sum >= 0 and negates a maximum, so that `join`, which is the same for both components, can distinguish
  /// them by their signs.
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

/// The smallest and the largest element of a unit.
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

/// The mean of all x < 0 and the mean of all x >= 0; 0 if there are none.
/// Source: Seide et al., "1-bit SGD", Interspeech 2014, section 3.
struct TwoMeans {
  static constexpr int width = 4;
  static constexpr float initial = 0;
  struct Scale {
    float low = 0, high = 0;
    bool operator==(const Scale&) const = default;
  };

  /// Counts both sides: a difference from the total count would lose a few elements among more than 2^24.
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

/// No scale, so nothing is measured or sent.
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

/// One scale for each segment; if chunks cut a segment, one for each part of it that a rank has.
struct PerSegment {
  static constexpr Units units() { return {}; }
};

/// One scale for every N elements, counted from the start of a piece (segment x chunk). It saves the pass that a longer
/// unit needs before the first of its bits can be written.
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
