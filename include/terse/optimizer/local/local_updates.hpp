// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/graph/concept.hpp"
#include "terse/optimizer/groups.hpp"
#include "terse/optimizer/local/local_state.hpp"
#include "terse/optimizer/sorted.hpp"

namespace terse {

/// Whether the plain mean of the ranks' parameters is what inner recipe R, run together, keeps.
template <class R>
constexpr bool check_inner_mean() {
  if constexpr (requires { typename decltype(Composed<R>::topology)::Graph; }) {
    using G = typename decltype(Composed<R>::topology)::Graph;
    static_assert(
        !graph::Traits<G>::push_sum || G::regular || graph::Traits<G>::unchecked,
        "terse: an outer step takes the plain mean, and push-sum weights on a graph where ranks have unequal "
        "numbers of neighbours keep another. Use a regular graph, such as OnePeerExponential");
  }
  return true;
}

/// Local update methods around any recipe: `period` steps of the inner recipe, then one outer step over all ranks.
/// The family that LocalSgd, PostLocalSgd, SlowMo, Bmuf and DiLoCo are members of.
///
///     each step           inner step on x_i with this rank's gradient
///     each period-th      Outer, from the mean over ranks of x_i, or of anchor - x_i, see OuterMomentum
///
/// In the first `average_gradients_until` steps (post-local SGD), and always where period is 1, Outer plain and
/// buffers are kept, ranks average gradients instead and make the same inner step: bit for bit what the inner recipe
/// does over exact averages, for gradient scales that are powers of two and without clip_norm. Moves may be compressed
/// with any compressor and feedback; PlainAverage keeps an anchor then, too.
///
/// average_gradients_until, inner_buffers and the error feedback's hyper-parameters hold from construction on.
///
/// A gradient that is not finite is found by its rank alone, which throws; the others throw peer_error when they wait
/// for it. NonFinite::skip and clip_norm are the inner recipe's, skip costs an agreement of all ranks in each step.
///
/// State: the inner recipe's; an anchor, n floats, where Outer has momentum or there is a compressor, and a velocity,
/// n floats, where Outer has momentum. Wire: nothing in most steps, one round of the topology in each period-th.
/// Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; Lin et al., "Don't use large
/// mini-batches, use local SGD", ICLR 2020 (post-local); and those of Outer.
template <class Inner, class Outer, class Where, class C, class F, class P>
struct LocalUpdatesOf {
  static_assert(detail::check_inner<Inner>() && check_means<C, F, P>());
  static_assert(
      !detail::is_blind<Inner>(),
      "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
  static_assert(check_inner_mean<Inner>());
  /// Whether what it does outside depends on how the rate has changed since, which a step knows for one recipe alone.
  static constexpr bool follows_rate = Outer::follows_rate;
  static constexpr int ratio_at = scalars_of<Inner>(), scalars = ratio_at + 1;
  static_assert(!detail::goes_around<Inner>() || (!follows_rate && !detail::follows_rate<Inner>()),
                "terse: of local methods around each other none may follow the learning rate (SlowMo and "
                "OverlapLocalSgd do; LocalSgd, Bmuf and DiLoCo don't)");

  Inner inner{};
  std::uint64_t period = 8;
  std::uint64_t average_gradients_until = 0;  ///< steps
  Outer outer{};
  InnerBuffers inner_buffers = InnerBuffers::keep;
  C compressor{};
  F error_feedback{};
  P topology{};

  void check() const {
    check_values(inner);
    require(period >= 1, "period must be at least 1", static_cast<double>(period));
    require(
        !Where::talks || average_gradients_until == 0,
        "only inner recipes that run alone can average gradients first; average_gradients_until must be 0",
        static_cast<double>(average_gradients_until));
    outer.check();
    detail::check_policy(compressor);
    detail::check_feedback_of_states(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    composed(inner).settings(visit);
    outside_settings(visit);
  }
  static constexpr bool takes_groups = detail::takes_groups<Inner>();
  template <class Visit>
  void common_settings(Visit&& visit) const {
    composed(inner).common_settings(visit);
    outside_settings(visit);
    if (follows_rate) visit("learning_rate", static_cast<double>(learning_rate_of(inner)));
  }
  template <class Visit>
  void outside_settings(Visit&& visit) const {
    visit("period", static_cast<double>(period));
    visit("average_gradients_until", static_cast<double>(average_gradients_until));
    outer.settings(visit);
    visit("inner_buffers", static_cast<double>(inner_buffers));
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(topology, visit);
  }
  /// Steps differ in more than numbers.
  static bool recordable() { return false; }
  template <class S>
  bool alike(const S& state) const {
    return state.averages_gradients(period, state.local_steps) ||
           state.steps_outside(period, state.local_steps);
  }

  template <Transport T, Executor E>
  using State = detail::LocalState<Inner, Outer, Where, C, F, P, T, E>;

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(state.last_rate));
    now.own[ratio_at] = Outer::follows_rate ? (last > 0 ? learning_rate_of(inner) / last : 0) : 1;
    composed(inner).prepare(input, state.inner, now);
  }
  template <Transport T, Executor E, class N>
  void prepare_group(const StepInput<E, N>& input, State<T, E>& state, std::size_t place,
                     StepScalars& now) const {
    composed(inner).prepare_group(input, state.inner, place, now);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    const std::uint64_t step = state.local_steps + 1;
    if (state.sends_moves && step == state.average_until + 1)
      for_each(input.executor, state.range,
               detail::KeepAnchor<typename N::parameter>{input.parameters, state.anchor.data()});
    if (state.averages_gradients(period, step)) {
      const StepInput<E, Numbers<typename N::parameter, float>> averaged{
          input.executor,  input.layout,     input.context,
          input.clip_norm, input.parameters, average(input, state)};
      composed(inner).enqueue(averaged, state.inner);
    } else {
      detail::by_itself(state.rank_alone, [&] {
        composed(inner).enqueue(detail::drawing_apart(input, state.rank_alone), state.inner);
      });
    }
    if (state.steps_outside(period, step)) step_outside(input, state);
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    detail::by_itself(state.rank_alone, [&] { composed(inner).complete(input, state.inner); });
    if (state.steps_outside(period, state.local_steps + 1)) {
      state.outer.settle(input.context);
      state.last_rate = std::bit_cast<std::uint32_t>(learning_rate_of(inner));
    }
    ++state.local_steps;
  }
  /// Optimizer::read_out.
  template <Transport T, Executor E>
  void read_out(E executor, const State<T, E>& state, ReadOut which, out<E> to) const
      requires(Outer::keeps_anchor) {
    for_each(executor, state.range,
             detail::OuterPoint{state.anchor.data(), state.velocity.data(), to.data(), outer.ahead(which)});
  }

 private:
  template <Transport T, Executor E, class N>
  const float* average(const StepInput<E, N>& input, State<T, E>& state) const {
    const detail::Raw<typename N::gradient> gradient{input.gradients};
    const detail::WriteMean write{state.mean.data()};
    state.exact->mix(input.context, {}, Message{gradient, gradient}, Message{write, write});
    // The inner step takes the mean as it finds it.
    state.exact->settle(input.context);
    return state.mean.data();
  }

  template <Transport T, Executor E, class N>
  void step_outside(const StepInput<E, N>& input, State<T, E>& state) const {
    using Number = typename N::parameter;
    const auto x = input.parameters;
    float* const anchor = state.anchor.data();
    const StepContext& context = input.context;
    if constexpr (!C::lossless) state.outer.set_compressor(compressor);
    if constexpr (!State<T, E>::sends_moves) {
      const detail::ReadParameters<Number> read{x};
      const detail::TakeMean<Number> take{x};
      state.outer.mix(context, {}, Message{read, read}, Message{take, take});
    } else {
      const detail::Move<Number> move{x, anchor};
      if constexpr (Outer::keeps_anchor) {
        const detail::StepOutside<Number, Outer::nesterov> step{
            x, anchor, state.velocity.data(), input.context.now, ratio_at, outer.rate, outer.momentum};
        state.outer.mix(context, {}, Message{move, move}, Message{step, step});
      } else {
        const detail::MoveAnchor<Number> step{x, anchor};
        state.outer.mix(context, {}, Message{move, move}, Message{step, step});
      }
    }
    state.treat_buffers(input);
  }
};

namespace detail {

template <class Inner, class Outer>
struct Around {
  template <class Where, class C, class F, class P>
  using Of = LocalUpdatesOf<Inner, Outer, Where, C, F, P>;
  template <class C, class F, class P>
  using OfAlone = Of<Inside::alone, C, F, P>;
};

}  // namespace detail

/// Local updates whose moves travel by a compressor, an error feedback and a topology, around a recipe that runs alone or,
/// with Inside::together, over all ranks; in any order. For what is left out see Sorted.
template <class Inner, class Outer, class... Ps>
using LocalUpdatesFrom = Sorted<
    detail::Around<Inner, Outer>::template Of,
    Takes<PolicyKind::inside, PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology>,
    Policies<Inside::alone>, Ps...>;
/// The same around a recipe that runs alone.
template <class Inner, class Outer, class... Ps>
using LocalUpdatesAround =
    Sorted<detail::Around<Inner, Outer>::template OfAlone, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
