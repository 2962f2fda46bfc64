// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/optimizer/local/late_mean.hpp"
#include "terse/optimizer/local/overlap_state.hpp"

namespace terse {

/// Local steps while the average of the last round runs: after every `period` steps of the inner recipe, alone on its
/// rank, the mean that was started `period` steps ago is taken up by Merge, and the next one starts. The first round
/// takes up the initial parameters. Nobody waits for a mean before it is needed, and then only for who is later than
/// a whole period. Each step moves the round on where its messages have come in.
///
///     OverlapLocalSgd<MomentumSgd<>>{.inner = {.learning_rate = 0.1F}, .period = 8, .merge = {.pullback = 0.6F}}
///
/// Saving completes the round under way and keeps its mean. A gradient that is not finite is found by its rank alone;
/// the others throw peer_error when they wait for it.
///
/// State: the inner recipe's; anchor and velocity, or mean and snapshot, n floats each. Wire: one dense round in each
/// period. Passes beside the inner recipe's: in each period-th step one to send, one over n / W, two to take up.
template <class Inner, class Merge = PullBack, Topology P = ScatterGather>
struct OverlapLocalSgd {
  static_assert(detail::check_inner<Inner>());
  static_assert(
      !detail::is_blind<Inner>(),
      "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
  static constexpr bool follows_rate = true;
  static constexpr int ratio_at = scalars_of<Inner>(), scalars = ratio_at + 1;
  static_assert(!detail::goes_around<Inner>(),
                "terse: OverlapLocalSgd follows the learning rate, of which a step knows one change alone: "
                "put it around "
                "a recipe that goes around no other");
  static_assert(!detail::evaluates_late<EarlyDenseTopologyOf<P>>(),
                "terse: parameters change while their mean is under way, and this topology (Ring) reads its "
                "message again in each hop. Use ScatterGather");
  static_assert(P::exact, "terse: the anchor must be the same on all ranks: take an exact topology");

  Inner inner{};
  std::uint64_t period = 8;
  Merge merge{};

  void check() const {
    check_values(inner);
    require(period >= 1, "period must be at least 1", static_cast<double>(period));
    merge.check();
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    composed(inner).settings(visit);
    visit("period", static_cast<double>(period));
    merge.settings(visit);
  }
  /// Steps differ in more than numbers.
  static bool recordable() { return false; }
  /// A mean that is taken up is one period old.
  static constexpr bool never_alike = true;

  template <Transport T, Executor E>
  using State = detail::OverlapState<Inner, P, T, E>;

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(state.last_rate));
    now.own[ratio_at] = last > 0 ? learning_rate_of(inner) / last : 0;
    composed(inner).prepare(input, state.inner, now);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    const auto x = input.parameters;
    const Range& range = state.range;
    float *const mean = state.mean.data(), *const own = state.merged.data();
    if (state.local_steps == 0) {
      using Keep = detail::KeepAnchor<typename N::parameter>;
      for_each(input.executor, range, Keep{x, mean});
      if (Merge::keeps_snapshot) for_each(input.executor, range, Keep{x, own});
    }
    detail::by_itself(
        state.rank, [&] { composed(inner).enqueue(detail::drawing_apart(input, state.rank), state.inner); });
    if (!meets(state)) {
      state.advance();
      return;
    }
    state.land();
    for_each(input.executor, range, merge.step(x, mean, own, input.context.now, ratio_at));
    const auto message = merge.message(x, mean, own);
    state.remember(input);
    state.exchange.start(state.sent, {}, Message{message, message});
    state.under_way = true;
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    detail::by_itself(state.rank, [&] { composed(inner).complete(input, state.inner); });
    if (meets(state)) state.last_rate = std::bit_cast<std::uint32_t>(learning_rate_of(inner));
    ++state.local_steps;
  }

 private:
  template <class S>
  bool meets(const S& state) const {
    return (state.local_steps + 1) % period == 0;
  }
};

/// CoCoD-SGD.
template <class Inner, Topology P = ScatterGather>
using CocodSgd = OverlapLocalSgd<Inner, DelayCorrection, P>;

}  // namespace terse
