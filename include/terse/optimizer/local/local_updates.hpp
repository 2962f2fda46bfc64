// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/optimizer/groups.hpp"
#include "terse/optimizer/local/check_local.hpp"
#include "terse/optimizer/local/local_state.hpp"
#include "terse/optimizer/sorted.hpp"

namespace terse {

namespace recipes {

/// Local update methods around any recipe: ranks take `period` steps of the inner recipe and then synchronize. By
/// Schedule they synchronize all at once, one period late, or fragment by fragment. LocalSgd, PostLocalSgd, SlowMo,
/// Bmuf and DiLoCo are members of this family; OverlapLocalSgd, CocodSgd and StreamingDiLoCo run as members.
///
///     every step            inner step on x_i with this rank's gradient
///     by Schedule           this fragment's message, by Outer, is sent; its mean enters by Outer, at once or later
///
/// In the first `average_gradients_until` steps (post-local SGD) ranks average gradients instead, and make the same
/// inner step. They always do if period is 1, ranks wait for means, Outer is plain and buffers are kept. This equals,
/// bit for bit, the inner recipe over exact averages, for gradient scales that are powers of two and without
/// clip_norm. Moves may be compressed with any compressor and feedback; PlainAverage then also keeps an anchor.
///
/// average_gradients_until, inner_buffers, schedule.count and the error feedback's hyper-parameters are fixed at
/// construction. If means come late, inner_buffers must be keep. If means come late, every step advances the rounds whose
/// messages have arrived, and no rank waits for a mean before it is due. Saving and destruction complete rounds in flight,
/// carry_over drops them.
/// Only its own rank detects a gradient that is not finite, and throws; the others throw peer_error when they wait for it.
/// NonFinite::skip and clip_norm are the inner recipe's; skip costs an agreement of all ranks in every step.
///
/// State: the inner recipe's; Outer's buffers, n floats each: an anchor if it has momentum or there is a compressor,
/// and a velocity if it has momentum. Wire: nothing in most steps; one round of the topology per fragment and period.
/// Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019; Lin et al., "Don't use large
/// mini-batches, use local SGD", ICLR 2020 (post-local); and the sources of Outer.
template <class Inner, class Outer, class Schedule, class Where, class C, class F, class P>
struct LocalUpdatesOf {
  using Rule = detail::OuterRuleOf<Outer, C, P>;
  static_assert(detail::check_inner<Inner>() && detail::check_outer_means<Rule, C, F, P>());
  static_assert(detail::check_inner_mean<Inner>() && detail::check_meeting<Inner, Rule, Schedule, P>());
  /// True if the outer step depends on the change of the rate since the last one, which a step knows only for one
  /// recipe.
  static constexpr bool follows_rate = Rule::follows_rate;
  static constexpr int ratio_at = detail::scalars_of<Inner>(), scalars = ratio_at + 1;

  Inner inner{};                              ///< the recipe of local steps
  std::uint64_t period = 8;                   ///< steps between two meetings, at least 1
  std::uint64_t average_gradients_until = 0;  ///< first steps, which average gradients instead
  Outer outer{};                              ///< the outer step
  /// Treatment of the inner recipe's buffers when ranks meet.
  InnerBuffers inner_buffers = InnerBuffers::keep;
  C compressor{};       ///< compressor of messages
  F error_feedback{};   ///< treatment of the compression error
  P topology{};         ///< communication pattern
  Schedule schedule{};  ///< times at which fragments are sent and their means enter

  void check() const {
    detail::check_values(inner);
    require(period >= 1, "period must be at least 1", static_cast<double>(period));
    require(
        !Where::talks || average_gradients_until == 0,
        "only inner recipes that run alone can average gradients first; average_gradients_until must be 0",
        static_cast<double>(average_gradients_until));
    require(
        P::exact || average_gradients_until == 0,
        "ranks that meet in pairs or over a graph have no mean gradient; average_gradients_until must be 0",
        static_cast<double>(average_gradients_until));
    require(
        P::exact || inner_buffers != InnerBuffers::average,
        "ranks that meet in pairs or over a graph have no mean of all; inner_buffers must be keep or reset",
        static_cast<double>(inner_buffers));
    require(!Schedule::late || inner_buffers == InnerBuffers::keep,
            "inner_buffers must be keep where means come late: no step is theirs alone",
            static_cast<double>(inner_buffers));
    schedule.check(period);
    outer.check();
    detail::check_policy(compressor);
    detail::check_feedback_of_states(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::composed(inner).settings(visit);
    outside_settings(visit);
  }
  static constexpr bool takes_groups = detail::takes_groups<Inner>() && !detail::takes_rates<Rule>();
  template <class Visit>
  void common_settings(Visit&& visit) const {
    detail::composed(inner).common_settings(visit);
    outside_settings(visit);
    if (follows_rate) visit("learning_rate", static_cast<double>(detail::learning_rate_of(inner)));
  }
  template <class Visit>
  void outside_settings(Visit&& visit) const {
    visit("period", static_cast<double>(period));
    visit("average_gradients_until", static_cast<double>(average_gradients_until));
    schedule.settings(visit);
    outer.settings(visit);
    visit("inner_buffers", static_cast<double>(inner_buffers));
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(topology, visit);
  }
  /// Returns false: steps differ in more than their scalars.
  static bool recordable() { return false; }
  static constexpr bool never_alike = Schedule::late || !P::exact;
  static constexpr bool inner_alone = !Where::talks;
  static constexpr bool goes_on = !detail::starts_exactly<F>() &&
                                  (!Where::talks || detail::goes_on<Inner>()) &&
                                  (!Schedule::late || requires { Rule::shared; });
  template <class S>
  bool alike(const S& state) const {
    return state.averages_gradients(period, state.local_steps) ||
           (!never_alike && state.steps_outside(period, state.local_steps));
  }

  template <class T>
  static constexpr bool check_on() {
    return terse::check_on<detail::Composed<Inner>, T>() && terse::check_on<P, T>();
  }

  template <Executor E>
  using State = detail::LocalState<Inner, Outer, Schedule, Where, C, F, P, E>;

  template <Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<E>& state, StepScalars& now) const {
    if (state.steps_outside(period, state.local_steps + 1)) state.check_peers(*this);
    now.own[ratio_at] = state.rate_ratio(*this);
    detail::composed(inner).prepare(input, state.inner, now);
  }
  template <Executor E, class N>
  void prepare_group(const StepInput<E, N>& input, State<E>& state, std::size_t place,
                     StepScalars& now) const {
    detail::composed(inner).prepare_group(input, state.inner, place, now);
  }
  template <Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<E>& state) const {
    const std::uint64_t step = state.local_steps + 1;
    if (step == state.average_until + 1)
      for (std::size_t k = 0; k != static_cast<std::size_t>(Rule::from_start); ++k)
        for_each(input.executor, state.range,
                 detail::KeepAnchor<typename N::parameter>{input.parameters, state.kept[k].data()});
    if (state.averages_gradients(period, step)) {
      const StepInput<E, Numbers<typename N::parameter, float>> averaged{
          input.executor,  input.layout,     input.context,
          input.clip_norm, input.parameters, average(input, state)};
      detail::composed(inner).enqueue(averaged, state.inner);
    } else {
      detail::by_itself(state.rank_alone, [&] {
        detail::composed(inner).enqueue(detail::drawing_apart(inside(input, state), state.rank_alone),
                                        state.inner);
      });
    }
    if (!state.averages_gradients(period, step)) meet(input, state, step);
  }
  template <Executor E, class N>
  void complete(const StepInput<E, N>& input, State<E>& state) const {
    detail::by_itself(state.rank_alone,
                      [&] { detail::composed(inner).complete(inside(input, state), state.inner); });
    if (state.steps_outside(period, state.local_steps + 1)) {
      if constexpr (!Schedule::late) state.fragments.front().exchange.settle(input.context);
      state.last_rate = std::bit_cast<std::uint32_t>(state.outer_rate(*this));
    }
    ++state.local_steps;
  }
  /// Implements Optimizer::read_out.
  template <Executor E>
  void read_out(E executor, const State<E>& state, ReadOut which, out<E> to) const requires requires {
    Rule(outer).ahead(which);
  }
  {
    for_each(
        executor, state.range,
        detail::OuterPoint{state.kept[0].data(), state.kept[1].data(), to.data(), Rule(outer).ahead(which)});
  }

 private:
  /// Returns the inner recipe's step input, with the parameters or with the buffer that Outer makes it step on.
  template <Executor E, class N>
  static auto inside(const StepInput<E, N>& input, [[maybe_unused]] State<E>& state) {
    if constexpr (detail::steps_apart<Rule>())
      return StepInput<E, Numbers<float, typename N::gradient>>{input.executor,         input.layout,
                                                                input.context,          input.clip_norm,
                                                                {state.kept[1].data()}, input.gradients};
    else
      return input;
  }
  template <Executor E, class N>
  const float* average(const StepInput<E, N>& input, State<E>& state) const {
    const detail::Raw<typename N::gradient> gradient{input.gradients};
    const detail::WriteMean write{state.mean.data()};
    state.exact->mix(input.context, {}, Message{gradient, gradient}, Message{write, write});
    // Reports errors here, since the inner step doesn't check the mean.
    state.exact->settle(input.context);
    return state.mean.data();
  }

  template <Executor E, class N>
  void meet(const StepInput<E, N>& input, State<E>& state, std::uint64_t step) const {
    for (auto& fragment : state.fragments) {
      const std::uint64_t since = step - state.average_until + period;
      const bool sends = (since - state.schedule.offset(fragment.turn, period)) % period == 0;
      if (sends) {
        if (fragment.due != 0) take_up(input, state, fragment);
        send(input, state, fragment, step);
      } else {
        fragment.advance();
      }
      if (fragment.due != 0 && fragment.due <= step) take_up(input, state, fragment);
    }
  }
  template <Executor E, class N, class Part>
  void send(const StepInput<E, N>& input, State<E>& state, Part& fragment, std::uint64_t step) const {
    if constexpr (!C::lossless) fragment.exchange.set_compressor(compressor);
    const Rule rule(outer);
    const auto message = rule.message(input.parameters, state.outer_buffers());
    if constexpr (requires { rule.whole_message(input.parameters, state.outer_buffers()); }) {
      const auto whole = rule.whole_message(input.parameters, state.outer_buffers());
      fragment.send(input, rule, Message{message, whole});
    } else if constexpr (Schedule::late) {
      fragment.send(input, rule, Message{message, message});
    } else {
      fragment.exchange.start(input.context, {}, detail::one_vector(message));
    }
    // Must be last: the calls above may throw.
    fragment.due = detail::merges_as_it_sends<Rule>() ? Part::when_sent : step + schedule.delay_in(period);
  }
  /// Applies the mean of this fragment's last round to the parameters.
  template <Executor E, class N, class Part>
  void take_up(const StepInput<E, N>& input, State<E>& state, Part& fragment) const {
    const Rule rule(outer);
    const auto x = input.parameters;
    const StepScalars* const now = input.context.now;
    if constexpr (Schedule::late) {
      state.land(fragment);
      if constexpr (detail::takes_rates<Rule>())
        state.rates->set(input.executor, input.layout, detail::learning_rate_of(inner), rule.weight_decay);
      for_each(input.executor, fragment.range, rule.merge(x, state.outer_buffers(), now, ratio_at));
      fragment.due = 0;
    } else {
      const auto arrive = rule.arrive(x, state.outer_buffers(), now, ratio_at);
      fragment.exchange.arrive();
      // If an error occurs from here on, the next step does not wait for this mean again.
      fragment.due = 0;
      fragment.exchange.consume(detail::one_vector(arrive));
      state.treat_buffers(input);
    }
  }
};

}  // namespace recipes

namespace detail {

template <class Inner, class Outer>
struct Around {
  template <class Schedule, class Where, class C, class F, class P>
  using Of = recipes::LocalUpdatesOf<Inner, Outer, Schedule, Where, C, F, P>;
};
template <class Inner, class Outer, class Schedule>
struct AroundAlone {
  template <class C, class F, class P>
  using Of = recipes::LocalUpdatesOf<Inner, Outer, Schedule, Inside::alone, C, F, P>;
};

}  // namespace detail

/// Local updates by a schedule, a compressor, an error feedback and a topology, in any order, around a recipe that
/// runs alone or, with Inside::together, over all ranks. For the default policies see Sorted; the default schedule is
/// Synchronous.
template <class Inner, class Outer, class... Ps>
using LocalUpdatesFrom = Sorted<detail::Around<Inner, Outer>::template Of,
                                Takes<PolicyKind::schedule, PolicyKind::inside, PolicyKind::compressor,
                                      PolicyKind::error_feedback, PolicyKind::topology>,
                                Policies<Synchronous, Inside::alone>, Ps...>;

namespace detail {

/// Local updates by this schedule, around a recipe that runs alone.
template <class Inner, class Outer, class Schedule, class... Ps>
using LocalUpdatesAround =
    Sorted<AroundAlone<Inner, Outer, Schedule>::template Of, TakesMeans, Policies<>, Ps...>;

}  // namespace detail

}  // namespace terse
