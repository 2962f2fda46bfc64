// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// Stochastic rounding of |x| to one of the two powers of two around it, so that its mean is |x|. The powers are
/// P, P / 2, ..., P / 2^126, with P the least power >= max |x| of the unit; below them there is 0.
/// Wire: bit 7 is the sign, bits 0 to 6 are 0 for 0 and j for P 2^(j - 127).
/// Source: Horvath et al., "Natural compression for distributed deep learning", MSML 2022 (there with the powers of
/// fp32, which require 9 bits).
struct NaturalPowers {
  using Statistic = MaxAbs;
  static constexpr int bits = 8;
  static constexpr bool stochastic = true;
  static constexpr bool unbiased = true;
  static constexpr bool represents_zero = true;
  static constexpr bool contractive = true;
  static constexpr bool tracks = true;

  /// E e^2 = (m - 1)(2 - m) 4^k for |x| = m 2^k, at most x^2 / 8 (at m = 4/3). Values below P / 2^126 have E e^2 <=
  /// (P / 2^127)^2, that is 2^-252 max^2. The rounding of 1/8 covers n of them.
  static constexpr double omega(index_t) { return 0.125; }
  static constexpr double delta(index_t n) { return 1 - omega(n); }

  /// Returns the sign and the exponent bits of |x| / P after u has been added to its mantissa: the carry rounds. Below
  /// the least power |x| / P is subnormal, and the same sum rounds between 0 and that power.
  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t random) {
    const float inverse = std::bit_cast<float>((254 - top(scale)) << 23);
    const float part = detail::smaller(magnitude(value) * inverse, 1);
    return (std::bit_cast<std::uint32_t>(part) + (random << 7) + 64) >> 23 |
           std::bit_cast<std::uint32_t>(value) >> 31 << 7;
  }
  TERSE_HD static float value(std::uint32_t code, float scale) {
    const float part = std::bit_cast<float>((code & 127) << 23);
    return detail::flipped_if(code >> 7, part * std::bit_cast<float>(top(scale) << 23));
  }

 private:
  /// Returns the exponent bits of P, 0 for the scale 0; P is at most 2^63, as messages are.
  TERSE_HD static std::uint32_t top(float scale) {
    const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(magnitude(scale)) + 0x7FFFFF) >> 23;
    return exponent < 190 ? exponent : 190;
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// An unbiased quantizer of 8 bits per element with a relative error. Wire: 1 byte per element and 4 bytes per unit.
template <Granularity G = PerSegment>
using Natural = Packed<quantizer::NaturalPowers, G>;

}  // namespace terse
