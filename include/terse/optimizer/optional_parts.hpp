// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/optimizer/recipe.hpp"

// What a recipe may have beside what it must have, see Recipe, and what holds of those that have it not.

namespace terse {

/// How many places of StepScalars::own a recipe takes, those of inner recipes included.
template <class R>
constexpr int scalars_of() {
  if constexpr (requires { Composed<R>::scalars; })
    return Composed<R>::scalars;
  else
    return 0;
}

namespace detail {

/// Whether a recipe goes around another one.
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

/// Whether a recipe keeps models apart that start apart, and so must refuse them.
template <class R>
constexpr bool needs_one_start() {
  if constexpr (requires { Composed<R>::models_differ; })
    return !Composed<R>::models_differ;
  else
    return true;
}

/// Tells whether all ranks throw in the same step where a value that one of them sends is not finite.
template <class R>
constexpr bool all_throw() {
  if constexpr (requires { Composed<R>::all_throw; }) return Composed<R>::all_throw;
  return false;
}

/// Whether its ranks hold the same parameters, at least at times.
template <class R>
constexpr bool ever_alike() {
  if constexpr (requires { Composed<R>::never_alike; }) return !Composed<R>::never_alike;
  return needs_one_start<R>();
}
/// Whether they do after the step that was just taken.
template <class R, class State>
bool alike(const R& recipe, const State& state) {
  if constexpr (requires { recipe.alike(state); }) return recipe.alike(state);
  return true;
}

/// Whether a recipe's messages can't show that a gradient isn't finite: `static constexpr bool blind`.
template <class R>
constexpr bool is_blind() {
  if constexpr (requires { Composed<R>::blind; }) return Composed<R>::blind;
  return false;
}

/// Whether the next step clips the mean of gradients, and not the gradients that it is of.
template <class State>
bool clips_mean(const State& state) {
  if constexpr (requires { state.clips_mean(); })
    return state.clips_mean();
  else
    return state.full_precision();
}
/// Shows what of a state is the same on all ranks, if it says so.
template <class State, class Visit>
void walk_shared(State& state, const Visit& visit) {
  // Asked in a lambda that is a template, the question is an error to nvcc 13.0.
  if constexpr (requires { state.walk_shared(visit); }) state.walk_shared(visit);
}

/// Whether a state says what a rank sends for a step.
template <class State>
concept SaysBytes = requires(const State& state) {
  { state.bytes_per_step() } -> std::same_as<StepBytes>;
};

/// Whether a preconditioner may mask elements as it freezes.
template <class State>
concept Freezes = requires(State& state) {
  { state.masked_elements() } -> std::same_as<MaskedElements&>;
};
/// What the freeze after the step that was just taken has masked. Throws usage_error where that would have been too much.
template <class State>
Masked masked_by_freeze(State& state, int rank, std::uint64_t step) {
  if constexpr (Freezes<State>) return state.masked_elements().of_step(rank, step);
  return {};
}

/// Whether a second stage may leave elements out.
template <class State>
concept TakesMask = requires(State& state, const std::uint8_t* elements) {
  { state.leave_out(elements) } -> std::same_as<std::uint64_t>;
};

/// Whether a step may be opened before its gradient is there.
template <class R, class State, class E, class N>
concept Opens = requires(const R& recipe, const StepInput<E, N>& input, State& state, index_t segment) {
  recipe.open(input, state);
  recipe.allow(state, segment);
  recipe.progress(state);
};

/// Whether other parameters are evaluated than those it steps on.
template <class R, class State, class E, class Which>
concept ReadsOut = requires(const R& recipe, const State& state, E executor, Which which, out<E> to) {
  recipe.read_out(executor, state, which, to);
};

}  // namespace detail

}  // namespace terse
