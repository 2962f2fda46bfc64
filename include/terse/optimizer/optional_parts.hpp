// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/optimizer/recipe.hpp"

// The optional members of a recipe, see Recipe, and their defaults for recipes without them.

namespace terse::detail {

/// Returns the number of places of StepScalars::own that a recipe takes, including those of inner recipes.
template <class R>
constexpr int scalars_of() {
  if constexpr (requires { Composed<R>::scalars; })
    return Composed<R>::scalars;
  else
    return 0;
}

/// Checks whether a recipe keeps the fp32 masters of 16-bit models itself.
template <class R>
constexpr bool keeps_masters() {
  if constexpr (requires { Composed<R>::keeps_masters; }) return Composed<R>::keeps_masters;
  return false;
}
/// Checks whether a recipe wraps an inner recipe.
template <class R>
constexpr bool goes_around() {
  return requires(const R& recipe) { recipe.inner; };
}
template <class R>
constexpr bool follows_rate() {
  if constexpr (requires { R::follows_rate; })
    return R::follows_rate;
  else
    return false;
}

/// Checks whether ranks must start from equal parameters, because the recipe would never remove a difference.
template <class R>
constexpr bool needs_one_start() {
  if constexpr (requires { Composed<R>::models_differ; })
    return !Composed<R>::models_differ;
  else
    return true;
}

/// Checks whether all ranks throw in the same step if a value that one of them sends is not finite.
template <class R>
constexpr bool all_throw() {
  if constexpr (requires { Composed<R>::all_throw; }) return Composed<R>::all_throw;
  return false;
}

/// Checks whether all ranks hold equal parameters, at least after some steps.
template <class R>
constexpr bool ever_alike() {
  if constexpr (requires { Composed<R>::never_alike; }) return !Composed<R>::never_alike;
  return needs_one_start<R>();
}
/// Checks whether the ranks that are left may go on without a lost rank's state.
template <class R>
constexpr bool goes_on() {
  if constexpr (requires { Composed<R>::goes_on; }) return Composed<R>::goes_on;
  return false;
}
/// Checks whether ranks count their steps independently of each other.
template <class R>
constexpr bool own_counts() {
  if constexpr (requires { Composed<R>::own_counts; }) return Composed<R>::own_counts;
  return false;
}
/// Checks whether the inner recipe of this one runs on each rank alone.
template <class R>
constexpr bool inner_alone() {
  if constexpr (requires { Composed<R>::inner_alone; }) return Composed<R>::inner_alone;
  return false;
}
/// Checks whether all ranks hold equal parameters after the step just taken.
template <class R, class State>
bool alike(const R& recipe, const State& state) {
  if constexpr (requires { recipe.alike(state); }) return recipe.alike(state);
  return ever_alike<R>();
}

/// Checks whether a recipe's messages can't show that a gradient isn't finite: `static constexpr bool blind`.
template <class R>
constexpr bool is_blind() {
  if constexpr (requires { Composed<R>::blind; }) return Composed<R>::blind;
  return false;
}

/// Checks whether the next step clips the mean of gradients instead of each rank's gradient.
template <class State>
bool clips_mean(const State& state) {
  if constexpr (requires { state.clips_mean(); })
    return state.clips_mean();
  else
    return state.full_precision();
}
/// Visits the part of a state that is equal on all ranks, if the state has walk_shared.
template <class State, class Visit>
void walk_shared(State& state, const Visit& visit) {
  // In a generic lambda, nvcc 13.0 reports this requires-expression as an error.
  if constexpr (requires { state.walk_shared(visit); }) state.walk_shared(visit);
}
/// Visits the other parts that are equal on all ranks, if the state has walk_derived.
template <class State, class Visit>
void walk_derived(State& state, const Visit& visit) {
  if constexpr (requires { state.walk_derived(visit); }) state.walk_derived(visit);
}
/// A state that may have messages in flight between steps.
template <class State, class E>
concept DropsRounds = requires(State& state, E executor) {
  state.drop_rounds(executor);
};
template <class State, class E>
void drop_rounds([[maybe_unused]] State& state, [[maybe_unused]] E executor) {
  if constexpr (DropsRounds<State, E>) state.drop_rounds(executor);
}

/// A state with a function that returns how many bytes a rank sends for a step.
template <class State>
concept SaysBytes = requires(const State& state) {
  { state.bytes_per_step() } -> std::same_as<StepBytes>;
};

/// A state whose preconditioner may mask elements when it freezes.
template <class State>
concept Freezes = requires(State& state) {
  { state.masked_elements() } -> std::same_as<MaskedElements&>;
};
/// Returns the elements that were masked by the freeze after the step just taken. Throws usage_error if the freeze would
/// mask too many.
template <class State>
Masked masked_by_freeze(State& state, int rank, std::uint64_t step) {
  if constexpr (Freezes<State>) return state.masked_elements().of_step(rank, step);
  return {};
}

/// A state whose second stage accepts a mask from the user.
template <class State>
concept TakesMask = requires(State& state, const std::uint8_t* elements) {
  { state.leave_out(elements) } -> std::same_as<std::uint64_t>;
};

/// A recipe that can open a step before the gradient is computed.
template <class R, class State, class E, class N>
concept Opens = requires(const R& recipe, const StepInput<E, N>& input, State& state, index_t segment) {
  recipe.open(input, state);
  recipe.allow(state, segment);
  recipe.progress(state);
};

/// A recipe whose model is evaluated at other parameters than those of its steps.
template <class R, class State, class E, class Which>
concept ReadsOut = requires(const R& recipe, const State& state, E executor, Which which, out<E> to) {
  recipe.read_out(executor, state, which, to);
};

}  // namespace terse::detail
