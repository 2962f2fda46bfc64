// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "terse/core/check.hpp"

namespace terse {

/// The step that a device has recorded, and the step for which the record is used; when the record is made, they are
/// equal.
struct RecordUse {
  std::uint64_t recorded, step;
};

namespace detail {

/// A visitor of hyper-parameters, for concepts, in which nvcc supports no lambdas.
struct IgnoreSetting {
  void operator()(const char*, double) const {}
};

/// False if a template has already reported that its arguments can't make a policy. Then no further error is reported:
/// clang++ leaves such a policy without members.
template <class Policy>
inline constexpr bool has_sound_parts = true;

/// A policy that states `facts` of this type.
template <class Policy, class Facts>
concept StatesFacts = requires {
  requires std::same_as<const Facts, decltype(Policy::facts)>;
};
template <class Facts>
constexpr bool can_be_read(Facts) {
  return true;
}
/// A policy with `facts`, or, the second, with `facts` whose initializer compiles.
template <class Policy>
concept NamesFacts = requires {
  Policy::facts;
};
template <class Policy>
concept HasValidFacts = std::bool_constant<can_be_read(Policy::facts)>::value;
/// A policy that has `facts` with an error, such as a misspelt member. The compiler has reported it; clang++ would also report
/// every use.
template <class Policy>
concept HasBrokenFacts = NamesFacts<Policy> && !HasValidFacts<Policy>;

/// A type-erased visitor of hyper-parameters, so that code that visits them is compiled once.
class SettingsVisitor {
 public:
  template <class Visit>
  explicit SettingsVisitor(Visit& visit)
      : visit_(const_cast<std::remove_const_t<Visit>*>(&visit)), call_(&call<Visit>) {}
  void operator()(const char* name, double value) const { call_(visit_, name, value); }

 private:
  template <class Visit>
  static void call(void* to, const char* name, double value) {
    (*static_cast<Visit*>(to))(name, value);
  }
  void* visit_;
  void (*call_)(void*, const char*, double);
};

template <class Policy>
concept HasHyperParameters = requires(const Policy& policy) {
  policy.hyper_parameters();
};

/// Checks a policy's hyper-parameters and calls its own check(), if it has them.
template <class Policy>
void check_policy(const Policy& policy) {
  if constexpr (HasHyperParameters<Policy>)
    for (const HyperParameter& one : policy.hyper_parameters())
      require(one.allowed.fine(one.value), one.name, one.allowed.words, one.value);
  if constexpr (requires { policy.check(); }) policy.check();
}
template <class Policy, class Visit>
void policy_settings(const Policy& policy, Visit&& visit) {
  if constexpr (HasHyperParameters<Policy>)
    for (const HyperParameter& one : policy.hyper_parameters()) visit(one.name, one.value);
  if constexpr (requires { policy.settings(visit); }) policy.settings(visit);
}

/// Returns the reason why a record of a step can't serve the step of `use`, or nullptr. A policy may wait for the
/// host, or the host may change the step. The reason is that of the first policy whose `const char*
/// unrecordable(const RecordUse&) const` returns one.
inline const char* unrecordable(const RecordUse&) { return nullptr; }
template <class Policy, class... Others>
const char* unrecordable(const RecordUse& use, const Policy& policy, const Others&... others) {
  if constexpr (requires { policy.unrecordable(use); })
    if (const char* why = policy.unrecordable(use)) return why;
  return unrecordable(use, others...);
}

/// A value that converts to any member, for concepts.
struct SomeValue {
  template <class Value>
  constexpr operator Value() const;
};
template <class Aggregate, class... Values>
concept HasMembers = requires {
  Aggregate{Values{}...};
};
/// Counts the members of an aggregate of numbers.
template <class Aggregate, class... Values>
constexpr std::size_t members_of() {
  if constexpr (HasMembers<Aggregate, Values..., SomeValue>)
    return members_of<Aggregate, Values..., SomeValue>();
  else
    return sizeof...(Values);
}

/// Reports wrong hyper-parameters of a policy with a readable static_assert.
template <class Policy>
constexpr bool check_parameters() {
  static_assert(
      !requires { &Policy::check; } || requires(const Policy& policy) { policy.check(); },
      "terse: a policy's check is `void check() const`, which throws usage_error for values that can't work");
  static_assert(
      std::is_empty_v<Policy> || HasHyperParameters<Policy> ||
          requires(const Policy& policy) { policy.settings(IgnoreSetting{}); },
      "terse: a policy with members needs hyper_parameters(), a std::array of a HyperParameter for each, or "
      "`template <class Visit> void "
      "settings(Visit&& visit) const`, which calls visit(name, double) for each, so that ranks that differ "
      "in them are found out");
  if constexpr (HasHyperParameters<Policy> && std::is_aggregate_v<Policy> &&
                !requires(const Policy& policy) { policy.settings(IgnoreSetting{}); })
    static_assert(
        std::tuple_size_v<decltype(std::declval<const Policy&>().hyper_parameters())> == members_of<Policy>(),
        "terse: a policy's hyper_parameters() has a HyperParameter for each member, in their order");
  return true;
}

}  // namespace detail
}  // namespace terse
