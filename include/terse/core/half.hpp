// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "terse/core/config.hpp"

namespace terse {

/// A 16-bit float: sign, exponent and mantissa, from the highest bit down; `largest` is the largest finite value.
/// Frameworks keep elements of parameters, gradients and activations in such types, with the same layout
/// (c10::BFloat16, __half). It holds a code and has no arithmetic: `narrowed<bf16>(x)` rounds a float, `widened(h)`
/// converts back.
struct bf16 {
  static constexpr int exponent_bits = 8, mantissa_bits = 7, bias = 127;
  static constexpr float largest = 0x1.FEp127F;
  std::uint16_t bits = 0;  ///< sign, exponent, mantissa

  bf16() = default;
  TERSE_HD constexpr explicit bf16(std::uint16_t code) : bits(code) {}
  // Compilers print the line of a deleted function that is called, so that line contains the error message.
  // clang-format off
  template <std::floating_point F>
  explicit bf16(F) = delete;  // terse: this takes the code of a number; narrowed<bf16>(x) rounds a float
  // clang-format on
  bool operator==(const bf16&) const = default;
};
/// The code of a number in IEEE 754's binary16: 5 bits of exponent, 10 of mantissa; magnitudes to 65504.
struct fp16 {
  static constexpr int exponent_bits = 5, mantissa_bits = 10, bias = 15;
  static constexpr float largest = 65504;
  std::uint16_t bits = 0;  ///< sign, exponent, mantissa

  fp16() = default;
  TERSE_HD constexpr explicit fp16(std::uint16_t code) : bits(code) {}
  // Compilers print the line of a deleted function that is called, so that line contains the error message.
  // clang-format off
  template <std::floating_point F>
  explicit fp16(F) = delete;  // terse: this takes the code of a number; narrowed<fp16>(x) rounds a float
  // clang-format on
  bool operator==(const fp16&) const = default;
};

/// The element types of parameters and gradients.
template <class T>
concept Number = std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, fp16>;

TERSE_NUMERICS_BEGIN

/// Returns the same number, exactly; infinities and NaN included.
TERSE_HD constexpr float widened(float x) { return x; }
/// Returns the same number, exactly; infinities and NaN included.
TERSE_HD constexpr float widened(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
/// Returns the same number, exactly; infinities and NaN included.
TERSE_HD constexpr float widened(fp16 x) {
  const std::uint32_t size = x.bits & 0x7FFFU;
  // An exponent of all ones must stay one.
  const std::uint32_t rebias = 112U << (size >= 0x7C00 ? 24 : 23);
  const std::uint32_t normal = (size << 13) + rebias;
  // Avoids fp32's subnormal numbers, which some programs switch off.
  const auto small =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-24F);
  const std::uint32_t all = 0U - static_cast<std::uint32_t>(size < 0x400);
  return std::bit_cast<float>((small & all) | (normal & ~all) | std::uint32_t{x.bits & 0x8000U} << 16);
}

namespace detail {

/// Returns the code of the format's number nearest to a float, ties to even. `size` holds the bits of the float's
/// magnitude, which is not NaN.
template <Number H>
TERSE_HD constexpr std::uint32_t nearest_code(std::uint32_t size) {
  if constexpr (std::same_as<H, bf16>) {
    return (size + 0x7FFF + (size >> 16 & 1)) >> 16;
  } else {
    constexpr std::uint32_t overflow = 0x477FF000;  // 65520, the first that is rounded to infinity
    constexpr std::uint32_t smallest = 113U << 23;  // 2^-14, the smallest normal number
    const std::uint32_t finite = size < overflow ? size : overflow;
    const std::uint32_t power = finite & 0x7F800000U;
    const std::uint32_t scale = power > smallest ? power : smallest;
    // A sum with 2^13 times the number's power of two has room for eleven bits, which is the format's precision.
    // They are counted relative to the bits of that summand, and a carry correctly increases the exponent.
    const std::uint32_t unit = scale + (13U << 23);
    const float sum = std::bit_cast<float>(finite) + std::bit_cast<float>(unit);
    return ((scale - smallest) >> 13) + (std::bit_cast<std::uint32_t>(sum) - unit);
  }
}

}  // namespace detail

/// Returns the nearest number of the format, ties to even, as IEEE 754 and the frameworks round. A number beyond the
/// largest becomes an infinity, and NaN stays NaN.
template <Number H>
TERSE_HD constexpr H narrowed(float x) {
  if constexpr (std::same_as<H, float>) {
    return x;
  } else {
    constexpr std::uint32_t quiet = std::same_as<H, bf16> ? 0x7FC0 : 0x7E00;
    const std::uint32_t word = std::bit_cast<std::uint32_t>(x), size = word & 0x7FFFFFFFU;
    const std::uint32_t nan = 0U - static_cast<std::uint32_t>(size > 0x7F800000U);
    const std::uint32_t code = (detail::nearest_code<H>(size) & ~nan) | (quiet & nan);
    return H{static_cast<std::uint16_t>((word >> 16 & 0x8000U) | code)};
  }
}

namespace detail {

/// Returns the format's finite number nearest to a finite float; zero has no sign.
template <Number H>
TERSE_HD constexpr H narrowed_finite(float x) {
  if constexpr (std::same_as<H, float>) {
    return x + 0.0F;
  } else {
    constexpr std::uint32_t largest = std::bit_cast<std::uint32_t>(H::largest);
    const std::uint32_t word = std::bit_cast<std::uint32_t>(x), size = word & 0x7FFFFFFFU;
    const std::uint32_t code = nearest_code<H>(size < largest ? size : largest);
    return H{static_cast<std::uint16_t>(code == 0 ? 0 : (word >> 16 & 0x8000U) | code)};
  }
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
