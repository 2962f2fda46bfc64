// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/executor/concept.hpp"

// Common parts of the quantizers with evenly spaced levels. Everything here compiles to a few vector instructions, even
// with SSE2, which lacks instructions for rounding and for the minimum of integers.

namespace terse {

TERSE_NUMERICS_BEGIN

/// Rounding to the nearest integer, ties to even. For |t| <= 256.
struct Nearest {
  static constexpr bool stochastic = false;
  TERSE_HD static constexpr std::int32_t round(float t, std::uint32_t) {
    // At 1.5 * 2^23 the spacing of floats is 1, so the addition rounds and the mantissa holds the integer.
    constexpr float base = 0x1.8p23F;
    return std::bit_cast<std::int32_t>(t + base) - std::bit_cast<std::int32_t>(base);
  }
};

/// Stochastic rounding: floor(t + u), u = (random + 1/2) / 2^16, so the mean over the 16 random bits is t within 2^-17.
/// Integers stay as they are. For |t| <= 256.
struct Stochastic {
  static constexpr bool stochastic = true;
  TERSE_HD static constexpr std::int32_t round(float t, std::uint32_t random) {
    // Keeps 22 binary places: a sum of floats would lose u for a large t.
    return (static_cast<std::int32_t>(t * 0x1p22F) + static_cast<std::int32_t>((random << 6) + 32)) >> 22;
  }
};

namespace detail {

TERSE_HD constexpr float smaller(float a, float b) { return keep_if(a < b, a, b); }
TERSE_HD constexpr float larger(float a, float b) { return keep_if(a > b, a, b); }
TERSE_HD constexpr float between(float x, float low, float high) { return smaller(larger(x, low), high); }

/// Returns the smaller of limit >= 0 and x. It compares bits as integers, which have the same order and for which both
/// compilers find the vector instruction.
TERSE_HD constexpr float at_most(float limit, float x) {
  const auto a = std::bit_cast<std::int32_t>(x), b = std::bit_cast<std::int32_t>(limit);
  const std::int32_t least = a < b ? a : b;
  return std::bit_cast<float>(least);
}
/// Returns the larger of limit < 0 and x. As unsigned integers, the bits of negative numbers are the largest, in
/// reverse order.
TERSE_HD constexpr float at_least(float limit, float x) {
  const auto a = std::bit_cast<std::uint32_t>(x), b = std::bit_cast<std::uint32_t>(limit);
  const std::uint32_t least = a < b ? a : b;
  return std::bit_cast<float>(least);
}

/// Returns levels / scale, finite for all scales >= 0. Those below 2^-110 count as 2^-110, so such small units decode
/// to zeros or small values, and never to NaN.
TERSE_HD constexpr float per_scale(float levels, float scale) { return levels / larger(scale, 0x1p-110F); }

/// Returns x with its sign flipped if `flip` is 1.
TERSE_HD constexpr float flipped_if(std::uint32_t flip, float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ flip << 31);
}

/// Returns sqrt(x), x >= 0, for error bounds in constant expressions, where std::sqrt is not allowed.
constexpr double square_root(double x) {
  double root = x > 1 ? x : 1;
  // Newton's iterates decrease until rounding stops them.
  for (double next = (root + x / root) / 2; next < root; next = (root + x / root) / 2) root = next;
  return root;
}

/// Returns the supremum of E ||C(x) - x||^2 / ||x||^2 over n elements, for stochastic rounding to `levels` even steps
/// between 0 and max |x|. The largest element is exact. The others cost most at t = 1 / (2 (1 + omega)) steps, so (n
/// - 1) / (4 (1 + omega)) = omega levels^2.
constexpr double max_scaled_omega(index_t n, int levels) {
  return n > 1 ? (square_root(1 + static_cast<double>(n - 1) / (levels * levels)) - 1) / 2 : 0;
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
