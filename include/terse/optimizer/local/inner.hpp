// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "terse/optimizer/optional_parts.hpp"
#include "terse/optimizer/policies.hpp"

// The recipe within a local method, and what such methods do around it.

namespace terse::detail {

/// Says in words what a type lacks to be the inner recipe of a local method.
template <class Inner>
constexpr bool check_inner() {
  constexpr bool policy = kind_of<Inner>() != PolicyKind::none;
  static_assert(
      !policy,
      "terse: this is a policy, and local methods expect an inner optimizer first, and policies behind "
      "it: DiLoCo<Adam<>, Ring>");
  if constexpr (!policy) {
    static_assert(
        !is_blind<Inner>(),
        "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
    return check_recipe<Inner>();
  }
  return false;
}

/// The step of an inner recipe that is alone in its world: random numbers of its rank's own, lest all ranks round alike.
template <class Input>
Input drawing_apart(Input input, int rank) {
  if (rank >= 0) input.context.seed = mix_hash(input.context.seed, static_cast<std::uint64_t>(rank) + 1);
  return input;
}

/// Runs a part of a recipe that is alone in its world, where it calls itself rank 0, so that its errors name `rank`;
/// -1: the recipe is not alone.
template <class Act>
void by_itself(int rank, Act act) {
  try {
    act();
  } catch (const non_finite_error& failure) {
    if (rank < 0) throw;
    throw_non_finite(flags_of(rank), rank, static_cast<std::uint64_t>(failure.step()));
  }
}

/// The options of an inner recipe. One that is alone in its world learns of its own gradients: another rank may freeze as it
/// is, so that none refuses.
inline Options inner_options(Options options, bool alone) {
  if (alone) options.most_masked = 1;
  return options;
}

/// Shows the state of an inner recipe beside that of what is around it.
template <class State, class Visit>
void walk_inner(State& inner, Visit&& visit) {
  inner.walk([&](const std::string& name, auto&&... rest) {
    visit("inner_" + name, std::forward<decltype(rest)>(rest)...);
  });
}

/// Completes a round under way at the end of its owner, since peers may need it, unless something has gone wrong already.
class AtEnd {
 public:
  template <class Complete>
  void operator()(const Complete& complete) const {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      complete();
    } catch (const std::exception&) {
      // A peer that is gone has said so elsewhere, or will.
    }
  }

 private:
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace terse::detail
