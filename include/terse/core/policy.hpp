// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse::detail {

/// A visitor of hyper-parameters, for concepts; nvcc knows no lambdas in those.
struct IgnoreSetting {
  void operator()(const char*, double) const {}
};

/// A policy's own checks and hyper-parameters, where it has any.
template <class Policy>
void check_policy(const Policy& policy) {
  if constexpr (requires { policy.check(); }) policy.check();
}
template <class Policy, class Visit>
void policy_settings(const Policy& policy, Visit&& visit) {
  if constexpr (requires { policy.settings(visit); }) policy.settings(visit);
}

}  // namespace terse::detail
