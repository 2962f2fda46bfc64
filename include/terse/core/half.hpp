// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "terse/core/config.hpp"

namespace terse {

/// 16-bit floats: sign, exponent, mantissa, from the highest bit down; `largest` is the largest finite one. Elements of
/// parameters and gradients that a framework keeps in 16 bits; laid out like its own (c10::BFloat16, __half).
struct bf16 {
  static constexpr int exponent_bits = 8, mantissa_bits = 7, bias = 127;
  static constexpr float largest = 0x1.FEp127F;
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};
struct fp16 {
  static constexpr int exponent_bits = 5, mantissa_bits = 10, bias = 15;
  static constexpr float largest = 65504;
  std::uint16_t bits = 0;
  bool operator==(const fp16&) const = default;
};

/// What parameters and gradients may be made of.
template <class T>
concept Number = std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, fp16>;

TERSE_NUMERICS_BEGIN

/// The same number; exact, infinities and NaN too.
TERSE_HD constexpr float widened(float x) { return x; }
TERSE_HD constexpr float widened(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
TERSE_HD constexpr float widened(fp16 x) {
  const std::uint32_t size = x.bits & 0x7FFFU;
  // An exponent of all ones must stay one.
  const std::uint32_t rebias = 112U << (size >= 0x7C00 ? 24 : 23);
  const std::uint32_t normal = (size << 13) + rebias;
  // Not by fp32's subnormal numbers, which some programs switch off.
  const auto small =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24F);
  const std::uint32_t all = 0U - static_cast<std::uint32_t>(size < 0x400);
  return std::bit_cast<float>((small & all) | (normal & ~all) | std::uint32_t{x.bits & 0x8000U} << 16);
}

/// The nearest number of the format, ties to even, as IEEE 754 and the frameworks round: beyond the largest it is an
/// infinity, and NaN stays NaN.
template <Number H>
TERSE_HD constexpr H narrowed(float x) {
  if constexpr (std::same_as<H, float>) {
    return x;
  } else {
    const std::uint32_t word = std::bit_cast<std::uint32_t>(x), size = word & 0x7FFFFFFFU;
    const std::uint32_t nan = 0U - static_cast<std::uint32_t>(size > 0x7F800000U);
    std::uint32_t code;
    if constexpr (std::same_as<H, bf16>) {
      code = (size + 0x7FFF + (size >> 16 & 1)) >> 16;
      code = (code & ~nan) | (0x7FC0 & nan);
    } else {
      constexpr std::uint32_t overflow =
          0x477FF000;  // 65520, which lies between the largest and what would follow
      const std::uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - (112U << 23)) >> 13;
      // At 0.5 floats lie as far apart as subnormal numbers of the format.
      const auto moved =
          std::bit_cast<std::uint32_t>(std::bit_cast<float>(size < 0x38800000 ? size : 0) + 0.5F);
      const std::uint32_t small = moved - 0x3F000000;
      code = size < 0x38800000 ? small : normal;
      code = size >= overflow ? 0x7C00 : code;
      code = (code & ~nan) | (0x7E00 & nan);
    }
    return H{static_cast<std::uint16_t>((word >> 16 & 0x8000U) | code)};
  }
}

TERSE_NUMERICS_END

}  // namespace terse
