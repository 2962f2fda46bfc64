// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/compressor/packed.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The two optimal levels for magnitudes of mean m and standard deviation d whose excess over the smallest one is
/// exponential, as for the largest elements of a message. They are m - 0.406 d, but not below 0, and m + 1.594 d.
/// Their midpoint, t = 1.594 deviations above the least magnitude, solves t = 2 - t / (e^t - 1), the condition of
/// Lloyd and Max.
///
/// The components: a count, the mean magnitude, the sum of squares of distances from that mean, and the sum of squares.
/// The last one overflows if the message's norm does, and is used only for that check. A difference of squares would
/// lose the deviation of magnitudes that are nearly equal. Source: Chan, Golub and LeVeque, "Updating formulae and a
/// pairwise algorithm for computing sample variances", 1979.
struct TwoMagnitudes {
  static constexpr int width = 4;
  static constexpr float initial = 0;
  static constexpr bool joins_together = true;
  static constexpr float above = 1.5936243F, below = 0.4063757F;  // 2 between them
  struct Scale {
    float low = 0, high = 0;
    bool operator==(const Scale&) const = default;
  };

  TERSE_HD static void terms(float x, float (&term)[width]) {
    term[0] = 1;
    term[1] = magnitude(x);
    term[2] = 0;
    term[3] = x * x;
  }
  TERSE_HD static void join(float (&a)[width], const float (&b)[width]) {
    const float all = a[0] + b[0], share = b[0] / (all > 0 ? all : 1), distance = b[1] - a[1];
    a[2] += b[2] + distance * distance * (a[0] * share);
    a[1] += distance * share;
    a[0] = all;
    a[3] += b[3];
  }
  TERSE_HD static Scale finish(const float* total, index_t count) {
    if (count == 0) return {};
    const float mean = total[1], deviation = std::sqrt(total[2] / static_cast<float>(count));
    const float low = mean - below * deviation;
    return {keep_if(low > 0, low), mean + above * deviation};
  }
};

namespace quantizer {

/// C(x) = the sign of x times the nearer of two magnitudes, see TwoMagnitudes. Two bits per element.
/// Source: Max, "Quantizing for minimum distortion", 1960; the levels for exponential tails are calculated.
struct SignAndMagnitude {
  using Statistic = TwoMagnitudes;
  using Scale = TwoMagnitudes::Scale;
  static constexpr int bits = 2;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = true;
  static constexpr bool tracks = true;
  static constexpr bool represents_zero = false;
  /// ||x||^2 - ||x - C(x)||^2 is at least n (m^2 - (0.406 d)^2), and more if elements exceed the midpoint, as some do
  /// if that bound is small; n m^2 >= m^2 + d^2 makes it ||x||^2 / n.
  static constexpr double delta(index_t n) { return n > 1 ? 1.0 / static_cast<double>(n) : 1; }

  TERSE_HD static std::uint32_t code(float value, Scale scale, std::uint32_t) {
    const std::uint32_t level = magnitude(value) > (scale.low + scale.high) / 2 ? 1U : 0U;
    return level | (value < 0 ? 2U : 0U);
  }
  TERSE_HD static float value(std::uint32_t code, Scale scale) {
    const float size = keep_if((code & 1U) != 0, scale.high, scale.low);
    return (code & 2U) != 0 ? -size : size;
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// Signs and one of the unit's two magnitudes, for picks of Sparse, which have similar sizes. Wire: n / 4 bytes of
/// codes and 8 bytes per unit.
///
///     Tiles<64, Sparse<Largest, TwoMagnitudeSign<>, PerSegment>>    2 bits per pick and 8 bytes per tile
template <Granularity G = PerSegment>
using TwoMagnitudeSign = Packed<quantizer::SignAndMagnitude, G>;

}  // namespace terse
