// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <type_traits>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/core/half.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

// Small floats in addition to bf16 and fp16: sign, exponent, mantissa, from the highest bit down; `largest` is the
// largest finite number.

/// 8 bits: 4 of exponent, 3 of mantissa. No infinities; the highest code of each sign is NaN. Source: OCP 8-bit
/// floating point specification, OFP8.
struct e4m3 {
  static constexpr int exponent_bits = 4, mantissa_bits = 3, bias = 7;
  static constexpr float largest = 448;
};
/// 8 bits: 5 of exponent, 2 of mantissa; magnitudes up to 57344.
struct e5m2 {
  static constexpr int exponent_bits = 5, mantissa_bits = 2, bias = 15;
  static constexpr float largest = 57344;
};
/// 4 bits: 0 and powers of two. Every code of either sign is a number; ties round up, except the tie with 0. Source:
/// Douillard et al., "Streaming DiLoCo", 2025.
struct e3m0 {
  static constexpr int exponent_bits = 3, mantissa_bits = 0, bias = 3;
  static constexpr float largest = 16;
};

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// A quantizer to the format's nearest number, ties to even, including subnormal numbers; values beyond the largest
/// number are clipped to it. With S = MaxAbs x is scaled so that the unit's largest magnitude becomes the format's.
/// Wire: the format's own code; codes of infinity or NaN are not sent and decode to the largest number.
template <class Format, class S>
struct CastTo {
  static constexpr bool scaled = std::is_same_v<S, MaxAbs>;
  static constexpr bool wide = Format::bias == 127;
  static_assert(scaled || std::is_same_v<S, Unscaled>, "terse: Cast is Unscaled or scaled by MaxAbs");
  static_assert(!scaled || !wide, "terse: bf16 has fp32's range and is Unscaled");

  using Statistic = S;
  using Scale = typename S::Scale;
  static constexpr int bits = 1 + Format::exponent_bits + Format::mantissa_bits;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool represents_zero = true;
  /// Requires a range as wide as fp32's, or one scaled to the unit. Other formats decode small units to zeros.
  static constexpr bool contractive = scaled || wide;
  /// An unscaled residual stays bounded as long as messages are below `largest`: |e| <= |y| always holds, and values
  /// that are too small accumulate.
  static constexpr bool tracks = true;

  /// |e| <= r |x| among normal numbers and |e| <= min(|x|, h max |x|) below them; the largest is exact.
  static constexpr double delta(index_t n) requires contractive {
    const double r = power(-Format::mantissa_bits - 1), most = 1 - r * r;
    if constexpr (!scaled) return most;
    const double h = power(-Format::bias - Format::mantissa_bits) / Format::largest;
    const double others = n > 1 ? static_cast<double>(n - 1) : 0, least = 1 / (1 + others * h * h);
    return least < most ? least : most;
  }

  /// The coder of a unit's elements.
  class Coder {
   public:
    using Quantizer = CastTo;
    TERSE_HD Coder([[maybe_unused]] Scale scale) {
      if constexpr (scaled) {
        enlarge_ = detail::per_scale(Format::largest, scale);
        unit_ = magnitude(scale) / Format::largest;
      }
    }
    TERSE_HD Coded operator()(float value, std::uint32_t) const {
      if constexpr (wide)
        return truncated(value);
      else
        return rounded(value);
    }

   private:
    /// Rounds to fp32's upper half. A carry goes from the mantissa to the exponent, but never to the sign.
    TERSE_HD static Coded truncated(float value) {
      const float x = detail::at_least(-Format::largest, detail::at_most(Format::largest, value));
      const auto word = std::bit_cast<std::uint32_t>(x);
      const std::uint32_t code = (word + half - 1 + (word >> dropped & 1)) >> dropped;
      return {code, std::bit_cast<float>(code << dropped)};
    }
    /// Rounds by an addition: at a power of two `dropped` binary orders above x, floats have the spacing of the
    /// format's numbers at x. Its subnormal numbers have the spacing of the least normal ones.
    TERSE_HD Coded rounded(float value) const {
      float x = value;
      if constexpr (scaled) x *= enlarge_;
      const float size = detail::at_most(Format::largest, magnitude(x));
      const std::uint32_t given = std::bit_cast<std::uint32_t>(size) & 0x7F800000U;
      const std::uint32_t exponent = given > least_normal ? given : least_normal;
      const auto base = std::bit_cast<float>(exponent + above);
      const float sum = size + base;
      float read = sum - base;
      if constexpr (scaled) read *= unit_;
      const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & 0x80000000U;
      // The steps above the power of two, minus those below the exponent's numbers, the first of which are
      // subnormal.
      const std::uint32_t code = std::bit_cast<std::uint32_t>(sum) - exponent + (exponent >> dropped) -
                                 (above + (least_normal >> dropped));
      return {code | sign >> (32 - bits), std::bit_cast<float>(std::bit_cast<std::uint32_t>(read) | sign)};
    }
    float enlarge_ = 1, unit_ = 1;
  };

  TERSE_HD static std::uint32_t code(float value, Scale scale, std::uint32_t random) {
    return Coder(scale)(value, random).code;
  }
  TERSE_HD static float value(std::uint32_t code, Scale scale) {
    constexpr std::uint32_t sign = 1U << (bits - 1);
    constexpr std::uint32_t last = (std::bit_cast<std::uint32_t>(Format::largest) >> dropped) - rebias;
    const std::uint32_t given = code & (sign - 1);
    const std::uint32_t known = given < last ? given : last;
    float size = std::bit_cast<float>((known + rebias) << dropped);
    if constexpr (!wide) {
      // Avoids fp32's subnormal numbers, which are slow on some processors and switched off by some programs.
      constexpr auto unit = static_cast<float>(power(1 - Format::bias - Format::mantissa_bits));
      const float small = static_cast<float>(static_cast<std::int32_t>(known)) * unit;
      size = keep_if(known < 1U << Format::mantissa_bits, small, size);
    }
    if constexpr (scaled) size *= magnitude(scale) / Format::largest;
    return detail::flipped_if(code >> (bits - 1), size);
  }

 private:
  static constexpr double power(int exponent) {
    double result = 1;
    for (int i = 0; i < exponent; ++i) result *= 2;
    for (int i = 0; i > exponent; --i) result /= 2;
    return result;
  }
  static constexpr int dropped = 23 - Format::mantissa_bits;
  static constexpr std::uint32_t half = 1U << (dropped - 1);
  static constexpr std::uint32_t rebias = (127U - Format::bias) << Format::mantissa_bits;
  /// fp32's bits of the least normal number, and the summand that raises an exponent by `dropped`.
  static constexpr std::uint32_t least_normal = (128U - Format::bias) << 23;
  static constexpr std::uint32_t above = static_cast<std::uint32_t>(dropped) << 23;
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// A cast to Format, which is bf16, fp16, e4m3, e5m2 or e3m0; S is Unscaled or MaxAbs. Wire: 2, 1 or half a byte per
/// element and, if scaled, 4 bytes per unit. Unscaled blocks have no scale, which saves the pass that would measure it.
template <class Format, Statistic S = Unscaled,
          Granularity G = std::conditional_t<std::is_same_v<S, Unscaled>, PerBlock<4096>, PerSegment>>
using Cast = Packed<quantizer::CastTo<Format, S>, G>;

}  // namespace terse
