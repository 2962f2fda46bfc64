// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/executor/reduction.hpp"

namespace terse {

/// A statistic of a unit's elements that gives its scale: `width` components, each reduced by `join` over `terms(x)`
/// from `initial`, and finished by `finish(totals, count)`. Count 0 must give the scale that decodes to 0. A statistic
/// with `joins_together` has a join(a, b) of all components at once, arrays of `width`, into a.
template <class S>
concept Statistic = requires(float x, float (&terms)[S::width], const float* totals, index_t count) {
  typename S::Scale;
  { S::initial } -> std::convertible_to<float>;
  requires detail::JoinsTogether<S> || detail::JoinsOneByOne<S>;
  S::terms(x, terms);
  { S::finish(totals, count) } -> std::same_as<typename S::Scale>;
};

/// A scalar quantizer, the part that most users write: `bits` per code, the statistic for a unit's scale, and two
/// functions.
///
///     code(value, scale, random)   -> the code, below 2^bits; `random` is 16 bits, 0 unless `stochastic`
///     value(code, scale)           -> the value that receivers decode
///
/// `unbiased` means E[value(code(x))] = x; a biased quantizer requires error feedback. For its other properties see
/// Traits.
template <class Q>
concept Quantizer = requires(float x, typename Q::Statistic::Scale scale, std::uint32_t word) {
  requires Statistic<typename Q::Statistic>;
  { Q::bits } -> std::convertible_to<int>;
  { Q::stochastic } -> std::convertible_to<bool>;
  { Q::unbiased } -> std::convertible_to<bool>;
  { Q::code(x, scale, word) } -> std::convertible_to<std::uint32_t>;
  { Q::value(word, scale) } -> std::same_as<float>;
};

/// A partition of elements into units that share a scale; `units()` describes it for the verbs.
template <class G>
concept Granularity = requires {
  { G::units() } -> std::same_as<Units>;
};

/// Reports a missing member of a quantizer with a readable static_assert.
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
      "terse: a quantizer states `static constexpr bool unbiased`, true if the mean of the decoded value is "
      "the sent value");
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
        "terse: a quantizer needs `static float value(std::uint32_t code, Scale scale)`, which returns the "
        "decoded value");
  }
  return Quantizer<Q>;
}

}  // namespace terse
