// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "terse/executor/concept.hpp"

namespace terse {

/// A statistic is reduced over a unit and gives its scale: `width` components, each joined by `join` from
/// `initial` over `terms(x)`, finished by `finish(totals, count)`. Count 0 must give the scale that decodes
/// to 0.
template <class S>
concept Statistic = requires(float x, float (&terms)[S::width], const float* totals, index_t count) {
  typename S::Scale;
  { S::initial } -> std::convertible_to<float>;
  { S::join(x, x) } -> std::same_as<float>;
  S::terms(x, terms);
  { S::finish(totals, count) } -> std::same_as<typename S::Scale>;
};

/// What most users write: `bits` a code, the statistic behind a unit's scale, and two functions.
///
///     code(value, scale, random)   -> the code, below 2^bits; `random` is 16 bits, 0 unless `stochastic`
///     value(code, scale)           -> what the receiver reads
///
/// `unbiased` says whether E[value(code(x))] = x: a biased one needs error feedback.
template <class Q>
concept Quantizer = requires(float x, typename Q::Statistic::Scale scale, std::uint32_t word) {
  requires Statistic<typename Q::Statistic>;
  { Q::bits } -> std::convertible_to<int>;
  { Q::stochastic } -> std::convertible_to<bool>;
  { Q::unbiased } -> std::convertible_to<bool>;
  { Q::code(x, scale, word) } -> std::convertible_to<std::uint32_t>;
  { Q::value(word, scale) } -> std::same_as<float>;
};

/// How elements share scales: `units()` says it to the verbs.
template <class G>
concept Granularity = requires {
  { G::units() } -> std::same_as<Units>;
};

/// Turns a range of a message into bytes and back. `lossless` ones send fp32 as it is; the others name the
/// `Code` by which packets are read, give the exact `wire_bytes(range)` of their section, and encode by
/// `measure` (once, where a unit reaches beyond a packet: `measured`) and `encode` (once a packet).
template <class C>
concept Compressor = std::copyable<C> && requires(const C& compressor, const Range& range) {
  { C::lossless } -> std::convertible_to<bool>;
  { C::unbiased } -> std::convertible_to<bool>;
  { compressor.wire_bytes(range) } -> std::same_as<index_t>;
};

/// Says in words what a type lacks to be a compressor.
template <class C>
constexpr bool check_compressor() {
  static_assert(
      requires(const C& compressor, const Range& range) {
        { compressor.wire_bytes(range) } -> std::same_as<index_t>;
      },
      "terse: a compressor needs `index_t wire_bytes(const Range&) const`, the exact bytes of its section of "
      "a packet; a "
      "scalar quantizer gets it from Packed<Quantizer, Granularity>");
  static_assert(
      requires {
        { C::lossless } -> std::convertible_to<bool>;
        { C::unbiased } -> std::convertible_to<bool>;
      },
      "terse: a compressor states `static constexpr bool lossless` and `static constexpr bool unbiased`, so "
      "that it is "
      "never paired with an error feedback that it diverges with");
  return Compressor<C>;
}

/// Says in words what a type lacks to be a quantizer.
template <class Q>
constexpr bool check_quantizer() {
  static_assert(
      requires {
        typename Q::Statistic::Scale;
        requires Statistic<typename Q::Statistic>;
      },
      "terse: a quantizer names its `Statistic` (RootMeanSquare, MeanAbs, or its own with width, initial, "
      "terms, join, "
      "finish and Scale)");
  static_assert(
      requires {
        { Q::bits } -> std::convertible_to<int>;
        { Q::stochastic } -> std::convertible_to<bool>;
        { Q::unbiased } -> std::convertible_to<bool>;
      },
      "terse: a quantizer states `static constexpr` int bits (1 to 8), bool stochastic, bool unbiased");
  static_assert(
      requires(float x, typename Q::Statistic::Scale scale, std::uint32_t word) {
        { Q::code(x, scale, word) } -> std::convertible_to<std::uint32_t>;
        { Q::value(word, scale) } -> std::same_as<float>;
      },
      "terse: a quantizer needs `static std::uint32_t code(float value, Scale scale, std::uint32_t random)` "
      "and "
      "`static float value(std::uint32_t code, Scale scale)`");
  return Quantizer<Q>;
}

}  // namespace terse
