// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/executor/concept.hpp"

// What the quantizers with evenly spaced levels share. Everything here becomes a few vector instructions with
// SSE2 already, which has no instruction for rounding and none for the minimum of integers.

namespace terse {

TERSE_NUMERICS_BEGIN

/// To the nearest integer, ties to even. For |t| <= 256.
struct Nearest {
  static constexpr bool stochastic = false;
  TERSE_HD static constexpr std::int32_t round(float t, std::uint32_t) {
    // At 1.5 * 2^23 floats lie 1 apart, so that the addition rounds and the mantissa holds the integer.
    constexpr float base = 0x1.8p23F;
    return std::bit_cast<std::int32_t>(t + base) - std::bit_cast<std::int32_t>(base);
  }
};

/// floor(t + u), u = (random + 1/2) / 2^16, so that the mean over the 16 random bits is t within 2^-17.
/// Integers stay as they are. For |t| <= 256.
struct Stochastic {
  static constexpr bool stochastic = true;
  TERSE_HD static constexpr std::int32_t round(float t, std::uint32_t random) {
    // 22 binary places. A sum of floats would round u away beside a large t.
    return (static_cast<std::int32_t>(t * 0x1p22F) + static_cast<std::int32_t>((random << 6) + 32)) >> 22;
  }
};

namespace detail {

TERSE_HD constexpr float smaller(float a, float b) { return keep_if(a < b, a, b); }
TERSE_HD constexpr float larger(float a, float b) { return keep_if(a > b, a, b); }
TERSE_HD constexpr float between(float x, float low, float high) { return smaller(larger(x, low), high); }

/// The smaller one of limit >= 0 and x, by integers: bits are in the same order, and for integers both compilers find
/// the vector instruction.
TERSE_HD constexpr float at_most(float limit, float x) {
  const auto a = std::bit_cast<std::int32_t>(x), b = std::bit_cast<std::int32_t>(limit);
  const std::int32_t least = a < b ? a : b;
  return std::bit_cast<float>(least);
}
/// The larger one of limit < 0 and x: as unsigned integers, bits of negative numbers are the largest, in reverse order.
TERSE_HD constexpr float at_least(float limit, float x) {
  const auto a = std::bit_cast<std::uint32_t>(x), b = std::bit_cast<std::uint32_t>(limit);
  const std::uint32_t least = a < b ? a : b;
  return std::bit_cast<float>(least);
}

/// levels / scale, finite for all scales >= 0: those below 2^-110 count as 2^-110, so that units that small
/// decode to zeros or nearly so, and none to NaN.
TERSE_HD constexpr float per_scale(float levels, float scale) { return levels / larger(scale, 0x1p-110F); }

/// x with its sign flipped where `flip` is 1.
TERSE_HD constexpr float flipped_if(std::uint32_t flip, float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ flip << 31);
}

/// sqrt for error bounds, which are constant expressions; std::sqrt is none. For x >= 0.
constexpr double square_root(double x) {
  double root = x > 1 ? x : 1;
  // Newton's iterates fall until rounding stops them.
  for (double next = (root + x / root) / 2; next < root; next = (root + x / root) / 2) root = next;
  return root;
}

/// sup of E ||C(x) - x||^2 / ||x||^2 over n elements, for stochastic rounding to `levels` even steps between
/// 0 and max |x|: the largest element is exact, and the others cost most at t = 1 / (2 (1 + omega)) steps, so
/// that (n - 1) / (4 (1 + omega)) = omega levels^2.
constexpr double max_scaled_omega(index_t n, int levels) {
  return n > 1 ? (square_root(1 + static_cast<double>(n - 1) / (levels * levels)) - 1) / 2 : 0;
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
