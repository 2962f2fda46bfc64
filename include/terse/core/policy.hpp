// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

namespace terse {

/// The step that a device has recorded, and the one that the record shall serve: the same when it is made.
struct RecordUse {
  std::uint64_t recorded, step;
};

namespace detail {

/// A visitor of hyper-parameters, for concepts; nvcc knows no lambdas in those.
struct IgnoreSetting {
  void operator()(const char*, double) const {}
};

/// Whether what a template makes a policy of is right. Where it isn't, the template has said so in words, and nothing else
/// is worth saying of the policy: clang++ leaves it without members.
template <class Policy>
inline constexpr bool has_sound_parts = true;

/// Any visitor of hyper-parameters, as one type: what they are is compiled once.
class SettingsVisitor {
 public:
  template <class Visit>
  explicit SettingsVisitor(Visit& visit)
      : visit_(const_cast<std::remove_const_t<Visit>*>(&visit)),
        call_([](void* to, const char* name, double value) { (*static_cast<Visit*>(to))(name, value); }) {}
  void operator()(const char* name, double value) const { call_(visit_, name, value); }

 private:
  void* visit_;
  void (*call_)(void*, const char*, double);
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

/// Why a record of a step can't serve the step of `use`, as the first of these policies to have a reason says by
/// `const char* unrecordable(const RecordUse&) const`: it waits for the host, or the host makes this step another one. Else nullptr.
inline const char* unrecordable(const RecordUse&) { return nullptr; }
template <class Policy, class... Others>
const char* unrecordable(const RecordUse& use, const Policy& policy, const Others&... others) {
  if constexpr (requires { policy.unrecordable(use); })
    if (const char* why = policy.unrecordable(use)) return why;
  return unrecordable(use, others...);
}

/// Says in words what is wrong with these, of policies whose hyper-parameters are their members.
template <class Policy>
constexpr bool check_parameters() {
  static_assert(
      !requires { &Policy::check; } || requires(const Policy& policy) { policy.check(); },
      "terse: a policy's check is `void check() const`, which throws usage_error for values that can't work");
  static_assert(
      std::is_empty_v<Policy> || requires(const Policy& policy) { policy.settings(IgnoreSetting{}); },
      "terse: a policy with members needs `template <class Visit> void settings(Visit&& visit) const`, which "
      "calls visit(name, double) for each hyper-parameter, so that ranks that differ in them are found out");
  return true;
}

}  // namespace detail
}  // namespace terse
