// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/core/check.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/exchange/exchange.hpp"
#include "terse/momentum_correction/concept.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/preconditioner/parameter_ref.hpp"
#include "terse/preconditioner/rates.hpp"

namespace terse {

/// The number formats of a model's parameters and gradients. Parameters of 16 bits have fp32 masters, which the optimizer
/// keeps and updates; the model gets rounded copies. All other state is always fp32.
template <Number P = float, Number G = P>
struct Numbers {
  using parameter = P;
  using gradient = G;
};

/// The input of a recipe's step, from the optimizer.
template <Executor E, class N>
struct StepInput {
  E executor;
  const Layout& layout;
  StepContext context;
  float clip_norm;  ///< bound on the averaged gradient's norm, for full-precision steps; or infinity
  ParameterRef<typename N::parameter> parameters;
  const typename N::gradient* gradients;
};

/// A recipe is an aggregate of hyper-parameters and policies. Most have composition(), which returns the recipe that
/// runs in their place, such as an Averaging. A recipe at the bottom of this chain has
///
///     check()              throws usage_error for invalid values; called in each step, allocates nothing
///     settings(visit)      visit(name, double) for every hyper-parameter; equal on all ranks
///     State<E>             everything that changes, from (recipe, executor, channel, layout, options); channel is a Channel
///       walk(visit)        visits each part once: visit(name, view, offset) or visit(name, uint64&)
///       walk_buffers(visit)    optional: visit(view) for each buffer of n floats that an outer step may reset or average
///       walk_shared(visit) optional: visit(name, view) for each buffer of n floats that is the same on all ranks
///       walk_derived(visit)    optional: visit(name, view, offset) for each other part that is the same on all ranks, such as masks
///       drop_rounds(executor)  optional: drops messages in flight between steps after a loss of a rank, so that neither walk nor the
///                          destructor waits for ranks; local steps in these messages must be in later ones
///       full_precision()   returns whether the next step averages gradients exactly
///       bytes_per_step()   optional: StepBytes, the most that a rank sends for a step, from Exchange::most_bytes
///     prepare(input, state, now)    computes the host's values for this step: rates, and the recipe's StepScalars
///     enqueue(input, state)         takes the step, written like the paper's algorithm box; on a device it only enqueues,
///                                   and may be recorded
///     complete(input, state)        waits, throws the errors that a device has found, counts
///     open(input, state), allow(state, segment), progress(state)    optional: opens the step's round before the gradient is
///                                   computed, see Exchange::open, marks a segment's gradient as final, and advances the
///                                   round; `enqueue` continues it
///
/// and optionally
///
///     static constexpr bool models_differ = true    ranks may start from different parameters
///     static constexpr bool blind = true            messages don't depend on the gradient; begin(input, state) sends them
///     static constexpr int scalars                  number of places of StepScalars::own that it takes
///     bool recordable()                             whether all steps send the same; true by default
///     const char* unrecordable(const RecordUse&, bool full_precision)    the reason why a record can't serve a step, from
///                                                   all policies that take part in it
///     bool alike(state)                             for local methods: true if all ranks hold the same parameters after the
///                                                   step just taken
///     static constexpr bool never_alike = true      ranks differ, except in the steps after which `alike` returns true
///     static constexpr bool goes_on = true          the ranks that are left may go on with their own states without a lost rank's,
///                                                   see carry_over
///     static constexpr bool own_counts = true       ranks count their steps independently of each other
///     static constexpr bool inner_alone = true      parts of its State whose names begin with "inner_" are of an inner recipe that runs
///                                                   on each rank alone
///     static constexpr bool keeps_masters = true    its State keeps the fp32 masters of 16-bit models, after a call of
///                                                   keep_masters(); steps get no values of such parameters
///     template <class T> static constexpr bool check_on()    checks a transport's type T by static_assert, for the recipe
///                                                   and its policies
///     static constexpr bool all_throw = true        all ranks throw non_finite_error in the same step, and so tell each
///                                                   other which value is not finite
///
/// A recipe whose hyper-parameters may differ between groups of segments has three more members. `static constexpr bool
/// takes_groups` is true. prepare_group(input, state, place, now) is called before `prepare` on the recipe of each
/// group, at place 1, 2, ... of Layout::groups. common_settings(visit) visits the settings that must be equal in all
/// groups.
template <class R>
concept Recipe = requires(const R& recipe) {
  recipe.composition();
}
|| requires(const R& recipe) {
  recipe.check();
  recipe.settings(detail::IgnoreSetting{});
};

/// Reports a missing member of a recipe with a readable static_assert.
template <class R>
constexpr bool check_recipe() {
  if constexpr (detail::has_sound_parts<R> && !requires(const R& recipe) { recipe.composition(); }) {
    static_assert(
        requires(const R& recipe) { recipe.check(); },
        "terse: a recipe needs composition(), or `void check() const`, which throws usage_error for values "
        "that can't work");
    static_assert(
        requires(const R& recipe) { recipe.settings(detail::IgnoreSetting{}); },
        "terse: a recipe needs `settings(visit) const`, which calls visit(name, double) for every "
        "hyper-parameter");
  }
  return Recipe<R>;
}

namespace detail {

/// Returns the recipe that runs in place of a recipe: the end of its chain of compositions, or the recipe itself if
/// it has none.
template <class R>
decltype(auto) composed(const R& recipe) {
  if constexpr (requires { recipe.composition(); }) {
    using End = std::remove_cvref_t<decltype(composed(recipe.composition()))>;
    return static_cast<End>(composed(recipe.composition()));
  } else {
    return (recipe);
  }
}

/// The type of composed(recipe) for a recipe of type R.
template <class R>
using Composed = std::remove_cvref_t<decltype(composed(std::declval<const R&>()))>;

/// The types of an optimizer, for the check of a recipe.
template <class R, class E, class N>
struct Setting {
  using State = typename R::template State<E>;
  using Input = StepInput<E, N>;
};
template <class R, class E, class N>
concept HasState = requires {
  requires std::is_constructible_v < typename Setting<R, E, N>::State,
  const R&, E, Channel&, const Layout&, const Options& > ;
};
template <class State>
concept ShowsState = requires(State& state) {
  state.walk(IgnoreState{});
};
template <class State>
concept SaysPrecision = requires(const State& state) {
  { state.full_precision() } -> std::same_as<bool>;
};
template <class R, class S>
concept Prepares = requires(const R& recipe, const typename S::Input& input, typename S::State& state,
                            StepScalars& now) {
  recipe.prepare(input, state, now);
};
template <class R, class S>
concept Enqueues = requires(const R& recipe, const typename S::Input& input, typename S::State& state) {
  recipe.enqueue(input, state);
};
template <class R, class S>
concept Completes = requires(const R& recipe, const typename S::Input& input, typename S::State& state) {
  recipe.complete(input, state);
};

template <class Bottom, class E, class N>
constexpr void check_bottom() {
  constexpr bool has_state = HasState<Bottom, E, N>;
  static_assert(has_state,
                "terse: a recipe needs `template <Executor E> struct State` with a constructor "
                "State(recipe, executor, Channel& channel, layout, const Options& options)");
  if constexpr (has_state) {
    using S = Setting<Bottom, E, N>;
    static_assert(ShowsState<typename S::State>,
                  "terse: a recipe's State needs `template <class Visit> void walk(Visit&& visit)`, which "
                  "shows each of its parts");
    static_assert(
        SaysPrecision<typename S::State>,
        "terse: a recipe's State needs `bool full_precision() const`, whether the next step averages "
        "gradients exactly");
    static_assert(Prepares<Bottom, S>,
                  "terse: a recipe needs `void prepare(input, state, StepScalars& now) const`, which "
                  "computes the host's values for a step");
    static_assert(Enqueues<Bottom, S>, "terse: a recipe needs `void enqueue(input, state) const`, the step");
    static_assert(
        Completes<Bottom, S>,
        "terse: a recipe needs `void complete(input, state) const`, which waits, throws and counts");
  }
}

/// Reports, with a readable static_assert, a member that is missing in the recipe at the end of R's compositions, over
/// transport T, on executor E, with N's numbers.
template <class R, class T, class E, class N>
constexpr bool check_steps() {
  if constexpr (Transport<T> && Recipe<R>) {
    static_assert(check_on<detail::Composed<R>, T>());
    detail::check_bottom<detail::Composed<R>, E, N>();
  }
  return true;
}

/// Throws usage_error for invalid values of a recipe and of all its compositions.
template <class R>
void check_values(const R& recipe) {
  check_policy(recipe);
  if constexpr (requires { recipe.composition(); }) check_values(recipe.composition());
}

/// Returns the learning rate of a recipe: in nested recipes (`DiLoCo<LocalSgd<Adam<>>>`) that of the innermost recipe, in two
/// stages that of the second stage.
template <class R>
float learning_rate_of(const R& recipe) {
  if constexpr (requires { recipe.inner; })
    return learning_rate_of(recipe.inner);
  else if constexpr (requires { recipe.second; })
    return learning_rate_of(recipe.second);
  else
    return recipe.learning_rate;
}

}  // namespace detail

/// Sets the learning rate of a recipe, and in two stages the rates of both.
template <class R>
void set_learning_rate(R& recipe, float rate) {
  if constexpr (requires { recipe.inner; }) {
    set_learning_rate(recipe.inner, rate);
  } else if constexpr (requires { recipe.second; }) {
    set_learning_rate(recipe.first, rate);
    set_learning_rate(recipe.second, rate);
  } else {
    recipe.learning_rate = rate;
  }
}

namespace detail {

/// Throws usage_error if the feedback follows the learning rate, or is invalid: for messages that don't depend on the
/// rate, which are momenta, moves or parameters.
template <class F>
void check_feedback_of_states(const F& feedback) {
  check_policy(feedback);
  if constexpr (requires { feedback.follows_rate; })
    if (feedback.follows_rate)
      throw usage_error(
          "error_feedback.follows_rate is for messages that are gradients; this method sends others");
}

/// Returns the factor that reduces `norm` to `clip_norm`.
inline float clip_factor(double norm, float clip_norm) {
  return norm > static_cast<double>(clip_norm) ? static_cast<float>(static_cast<double>(clip_norm) / norm)
                                               : 1.0F;
}

}  // namespace detail

/// The exchange that averages gradients exactly: the full-precision stage of every recipe.
template <Topology P, Executor E>
using DenseExchange = Exchange<Dense, NoErrorFeedback, detail::DenseTopologyOf<P>, E>;

namespace detail {

/// Opens the round of average_gradients, see Exchange::open.
template <class X, Executor E, class N>
void open_average(X& exchange, const StepInput<E, N>& input) {
  const ScaledGradient gradient{input.gradients, input.context.now};
  exchange.open(input.context, {}, Message{gradient, gradient});
}

/// Averages the message `said`, clips the mean if requested, and passes it to `use`, an update with a
/// `gradient_factor`.
template <class X, Executor E, class N, class Said, class Use>
void average_exactly(X& exchange, const StepInput<E, N>& input, const Said& said, Use use) {
  exchange.start(input.context, {}, Message{said, said});
  exchange.arrive();
  use.gradient_factor =
      std::isfinite(input.clip_norm) ? clip_factor(exchange.mean_norm(), input.clip_norm) : 1.0F;
  exchange.consume(Message{use, use});
}

}  // namespace detail

/// Averages the gradient, clips the mean if requested, and passes it to `use`.
template <class X, Executor E, class N, class Use>
void average_gradients(X& exchange, const StepInput<E, N>& input, const Use& use) {
  detail::average_exactly(exchange, input, ScaledGradient{input.gradients, input.context.now}, use);
}

}  // namespace terse
