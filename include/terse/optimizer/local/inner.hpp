// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "terse/optimizer/optional_parts.hpp"
#include "terse/optimizer/policies.hpp"

// The inner recipe of a local method, and helpers of the method around it.

namespace terse::detail {

/// Reports with a readable static_assert why a type can't be the inner recipe of a local method.
template <class Inner>
constexpr bool check_inner() {
  constexpr bool policy = kind_of<Inner>() != PolicyKind::none;
  static_assert(!policy,
                "terse: this is a policy, and local methods expect an inner optimizer first and policies "
                "after it: DiLoCo<Adam<>, Ring>");
  if constexpr (!policy) {
    static_assert(
        !is_blind<Inner>(),
        "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
    static_assert(
        !keeps_masters<Inner>(),
        "terse: Sharded divides the state of one model among all ranks, and the ranks of a local method have "
        "models of their own. Use Adam<> instead of Sharded<Adam<>>");
    return check_recipe<Inner>();
  }
  return false;
}

/// Returns the step input of an inner recipe that runs alone, with its rank's own random numbers, so that ranks
/// don't all round in the same way.
template <class Input>
Input drawing_apart(Input input, int rank) {
  if (rank >= 0) input.context.seed = mix_hash(input.context.seed, static_cast<std::uint64_t>(rank) + 1);
  return input;
}

/// Runs a part of a recipe. A recipe that runs alone is rank 0 in its errors, so they are changed to name `rank`. -1
/// means that the recipe does not run alone.
template <class Act>
void by_itself(int rank, Act act) {
  try {
    act();
  } catch (const non_finite_error& failure) {
    if (rank < 0) throw;
    throw_non_finite(flags_of(rank), rank, static_cast<std::uint64_t>(failure.step()));
  }
}

/// Returns the options of an inner recipe. A recipe that runs alone sees only its own gradients and must not refuse
/// a freeze, since another rank may freeze.
inline Options inner_options(Options options, bool alone) {
  if (alone) options.most_masked = 1;
  return options;
}

/// Visits the state of an inner recipe, under names that begin with `inner_`.
template <class State, class Visit>
void walk_inner(State& inner, Visit&& visit) {
  inner.walk([&](const std::string& name, auto&&... rest) {
    visit("inner_" + name, std::forward<decltype(rest)>(rest)...);
  });
}

/// A guard that completes a round in flight when its owner is destroyed, since peers may need it, unless an exception
/// is in flight.
class AtEnd {
 public:
  template <class Complete>
  void operator()(const Complete& complete) const {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      complete();
    } catch (const std::exception&) {
      // The peer's failure is reported elsewhere.
    }
  }

 private:
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace terse::detail
