// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "terse/core/error.hpp"

// What policies and recipes say of their hyper-parameters in check(), which each step asks: nothing is allocated where all
// is well.

namespace terse {

namespace detail {

[[noreturn]] TERSE_COLD inline void throw_unusable(const std::string& what, double value) {
  throw usage_error(what + ", not " + std::to_string(value));
}
[[noreturn]] TERSE_COLD inline void throw_unusable(const char* name, const char* what, double value) {
  throw_unusable(std::string(name) + " must be " + what, value);
}
/// Throws what `fault` says, of this part: "group 1: beta1 must be in [0, 1), not 1".
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
/// The same as "`name` must be `what`, not `value`".
inline void require(bool fine, const char* name, const char* what, double value) {
  if (!fine) detail::throw_unusable(name, what, value);
}
/// Throws usage_error unless `rate` is finite and >= 0.
inline void check_rate(const char* name, float rate) {
  require(rate >= 0 && rate <= std::numeric_limits<float>::max(), name, "finite and >= 0",
          static_cast<double>(rate));
}
/// Throws usage_error unless `beta` is in [0, 1).
inline void check_beta(const char* name, float beta) {
  require(beta >= 0 && beta < 1, name, "in [0, 1)", static_cast<double>(beta));
}
/// What keeps 0 / 0 away where a gradient was always 0.
inline void check_epsilon(float epsilon) {
  require(epsilon > 0 && epsilon <= std::numeric_limits<float>::max(), "epsilon", "finite and > 0",
          static_cast<double>(epsilon));
}

}  // namespace terse
