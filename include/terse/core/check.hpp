// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "terse/core/error.hpp"

// Checks of hyper-parameters, for check() of policies and recipes. They run in every step and allocate only if one
// fails.

namespace terse {

namespace detail {

[[noreturn]] TERSE_COLD inline void throw_unusable(const std::string& what, double value) {
  throw usage_error(what + ", not " + std::to_string(value));
}
[[noreturn]] TERSE_COLD inline void throw_unusable(const char* name, const char* what, double value) {
  throw_unusable(std::string(name) + " must be " + what, value);
}
/// Throws the sentence of `fault` after the part's name: "group 1: beta1 must be in [0, 1), not 1".
[[noreturn]] TERSE_COLD inline void refuse_part(const std::string& part, const usage_error& fault) {
  std::string_view said = fault.what();
  if (constexpr std::string_view prefix = "terse: "; said.starts_with(prefix))
    said.remove_prefix(prefix.size());
  throw usage_error(part + ": " + std::string(said));
}

}  // namespace detail

/// Throws usage_error "`what`, not `value`" unless `fine`.
inline void require(bool fine, const char* what, double value) {
  if (!fine) detail::throw_unusable(what, value);
}
/// Throws usage_error "`name` must be `what`, not `value`" unless `fine`.
inline void require(bool fine, const char* name, const char* what, double value) {
  if (!fine) detail::throw_unusable(name, what, value);
}

namespace detail {

/// Throws usage_error unless `rate` is finite and >= 0.
inline void check_rate(const char* name, float rate) {
  require(rate >= 0 && rate <= std::numeric_limits<float>::max(), name, "finite and >= 0",
          static_cast<double>(rate));
}

/// Throws usage_error unless `beta` is in [0, 1).
inline void check_beta(const char* name, float beta) {
  require(beta >= 0 && beta < 1, name, "in [0, 1)", static_cast<double>(beta));
}

/// Throws usage_error unless `epsilon` is finite and > 0. It prevents 0 / 0 if a gradient was always 0.
inline void check_epsilon(float epsilon) {
  require(epsilon > 0 && epsilon <= std::numeric_limits<float>::max(), "epsilon", "finite and > 0",
          static_cast<double>(epsilon));
}

}  // namespace detail

/// The values that a hyper-parameter may have, and their description in errors.
struct Allowed {
  bool (*fine)(double);
  const char* words;
};
namespace allowed {

/// No bound.
inline constexpr Allowed any_value{[](double) { return true; }, ""};
/// From 0 to below 1.
inline constexpr Allowed below_one{[](double value) { return value >= 0 && value < 1; }, "in [0, 1)"};
/// From 0 to 1.
inline constexpr Allowed up_to_one{[](double value) { return value >= 0 && value <= 1; }, "in [0, 1]"};
/// Above 0, up to 1.
inline constexpr Allowed share{[](double value) { return value > 0 && value <= 1; }, "in (0, 1]"};
/// 0 or more, and finite as a float.
inline constexpr Allowed not_negative{
    [](double value) {
      return value >= 0 && value <= static_cast<double>(std::numeric_limits<float>::max());
    },
    "finite and >= 0"};
/// Above 0, and finite as a float.
inline constexpr Allowed above_zero{
    [](double value) { return value > 0 && value <= static_cast<double>(std::numeric_limits<float>::max()); },
    "finite and > 0"};

}  // namespace allowed

/// A hyper-parameter of a policy: its name in errors, fingerprints and checkpoints, its value and its allowed values.
struct HyperParameter {
  const char* name;
  double value;
  Allowed allowed;

  template <class Value>
  constexpr HyperParameter(const char* name_, Value value_, const Allowed& allowed_ = allowed::any_value)
      : name(name_), value(static_cast<double>(value_)), allowed(allowed_) {}
  /// Converts the value to the type of a rule's member.
  template <class Value>
  requires std::is_arithmetic_v<Value>
  constexpr operator Value() const { return static_cast<Value>(value); }
};

}  // namespace terse
