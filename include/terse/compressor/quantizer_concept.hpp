// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/executor/reduction.hpp"

namespace terse {

/// A statistic is reduced over a unit and gives its scale: `width` components, each joined by `join` from
/// `initial` over `terms(x)`, finished by `finish(totals, count)`. Count 0 must give the scale that decodes
/// to 0. One that says `joins_together` has a join(a, b) of all components at once, arrays of `width`, into a.
template <class S>
concept Statistic = requires(float x, float (&terms)[S::width], const float* totals, index_t count) {
  typename S::Scale;
  { S::initial } -> std::convertible_to<float>;
  requires detail::JoinsTogether<S> || detail::JoinsOneByOne<S>;
  S::terms(x, terms);
  { S::finish(totals, count) } -> std::same_as<typename S::Scale>;
};

/// What most users write: `bits` a code, the statistic behind a unit's scale, and two functions.
///
///     code(value, scale, random)   -> the code, below 2^bits; `random` is 16 bits, 0 unless `stochastic`
///     value(code, scale)           -> what the receiver reads
///
/// `unbiased` says whether E[value(code(x))] = x: a biased one needs error feedback. What else the theory
/// asks of it, see Traits.
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
      },
      "terse: a quantizer states `static constexpr int bits`, of a code: 1 to 8, or 16");
  static_assert(
      requires {
        { Q::stochastic } -> std::convertible_to<bool>;
      },
      "terse: a quantizer states `static constexpr bool stochastic`, whether code uses its random bits");
  static_assert(
      requires {
        { Q::unbiased } -> std::convertible_to<bool>;
      },
      "terse: a quantizer states `static constexpr bool unbiased`, whether the mean of what receivers read "
      "is "
      "what was sent");
  if constexpr (requires { typename Q::Statistic::Scale; }) {
    static_assert(
        requires(float x, typename Q::Statistic::Scale scale, std::uint32_t word) {
          { Q::code(x, scale, word) } -> std::convertible_to<std::uint32_t>;
        },
        "terse: a quantizer needs `static std::uint32_t code(float value, Scale scale, std::uint32_t "
        "random)`");
    static_assert(
        requires(typename Q::Statistic::Scale scale, std::uint32_t word) {
          { Q::value(word, scale) } -> std::same_as<float>;
        },
        "terse: a quantizer needs `static float value(std::uint32_t code, Scale scale)`, what receivers "
        "read");
  }
  return Quantizer<Q>;
}

}  // namespace terse
