// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <exception>
#include <string>
#include <utility>

#include "terse/optimizer/local/outer_step.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

template <Number P>
struct PullBackStep {
  Weights<P> parameters;
  const float* anchor;
  float* velocity;
  const StepScalars* now;
  float pullback, momentum;
  float ratio = 1;

  TERSE_HD void enter(const Piece&) { ratio = now->outer_ratio; }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float z = anchor[i];
    // Exact at both ends, pullback 0 and 1.
    const float x = (1 - pullback) * parameters[i] + pullback * z;
    velocity[i] = momentum * ratio * velocity[i] + (z - x);
    parameters.set(i, x);
  }
};

struct AheadOfAnchor {
  const float *anchor, *velocity;
  TERSE_HD float operator()(const Piece&, index_t i) const { return anchor[i] - velocity[i]; }
};

template <Number P>
struct CorrectDelay {
  Weights<P> parameters;
  const float* mean;
  float* snapshot;

  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float x = mean[i] + (parameters[i] - snapshot[i]);
    snapshot[i] = x;
    parameters.set(i, x);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// How a late mean enters the model, Overlap-Local-SGD's way: x_i is pulled towards the anchor z, which has momentum
/// of its own. With a = pullback, b = anchor_momentum and gamma the learning rate,
///
///     x_i = (1 - a) x_i + a z        v_i = b r v_i + (z - x_i)        next z = mean_i (z - v_i)
///
/// v is gamma times the paper's; r, the ratio of the learning rates of two rounds, rescales it. a = 0 leaves the
/// ranks alone, a = 1 takes back every step: neither is Local SGD. At b = 0, (1 - a) mean x + a z moves by (1 - a)
/// gamma times the mean gradient in every step. Source: Wang, Liang and Joshi, "Overlap Local-SGD", ICASSP 2020,
/// equations 3 to 8.
struct PullBack {
  float pullback = 0.6F;
  float anchor_momentum = 0.7F;

  void check() const {
    detail::require(pullback >= 0 && pullback <= 1, "pullback must be in [0, 1]",
                    static_cast<double>(pullback));
    detail::check_beta("anchor_momentum", anchor_momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("pullback", static_cast<double>(pullback));
    visit("anchor_momentum", static_cast<double>(anchor_momentum));
  }
  template <Number P>
  detail::PullBackStep<P> step(Weights<P> x, const float* mean, float* own, const StepScalars* now) const {
    return {x, mean, own, now, pullback, anchor_momentum};
  }
  template <Number P>
  static detail::AheadOfAnchor message(Weights<P>, const float* mean, const float* own) {
    return {mean, own};
  }
  /// Whether `own` starts at the initial parameters rather than at 0.
  static constexpr bool keeps_snapshot = false;
};

/// CoCoD-SGD's way: x_i = mean of what was sent + what this rank has done since. Nothing is taken back. Source: Shen
/// et al., "Faster distributed deep net training: computation and communication decoupled stochastic gradient
/// descent", IJCAI 2019, algorithm 1.
struct DelayCorrection {
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static detail::CorrectDelay<P> step(Weights<P> x, const float* mean, float* own, const StepScalars*) {
    return {x, mean, own};
  }
  template <Number P>
  static detail::ReadParameters<P> message(Weights<P> x, const float*, const float*) {
    return {x};
  }
  static constexpr bool keeps_snapshot = true;
};

/// Local steps while the average of the last round runs: after every `period` steps of the inner recipe, alone on its
/// rank, the mean that was started `period` steps ago is taken up by Merge, and the next one starts. The first round
/// takes up the initial parameters. Nobody waits for a mean before it is needed, and then only for who is later than
/// a whole period. Each step moves the round on where its messages have come in.
///
///     OverlapLocalSgd<MomentumSgd>{.inner = {.learning_rate = 0.1F}, .period = 8, .merge = {.pullback = 0.6F}}
///
/// Saving completes the round under way and keeps its mean. A gradient that is not finite is found by its rank alone;
/// the others throw peer_error when they wait for it.
///
/// State: the inner recipe's; anchor and velocity, or mean and snapshot, n floats each. Wire: one dense round in each
/// period. Passes beside the inner recipe's: in each period-th step one to send, one over n / W, two to take up.
template <class Inner, class Merge = PullBack, Topology P = ScatterGather>
struct OverlapLocalSgd {
  static_assert(check_recipe<Inner>());
  static_assert(
      !detail::is_blind<Inner>(),
      "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
  static_assert(P::exact, "terse: the anchor must be the same on all ranks: take an exact topology");

  Inner inner{};
  std::uint64_t period = 8;
  Merge merge{};

  void check() const {
    inner.check();
    detail::require(period >= 1, "period must be at least 1", static_cast<double>(period));
    merge.check();
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    inner.settings(visit);
    visit("period", static_cast<double>(period));
    merge.settings(visit);
  }
  /// Steps differ in more than numbers.
  static bool recordable() { return false; }

  template <Transport T, Executor E>
  struct State {
    using Arena = buffer<float, typename E::memory>;

    T own;  // a world of this rank alone
    typename Inner::template State<T, E> inner;
    DenseExchange<P, T, E> exchange;
    Arena mean, merged;  // what has come in last, and Merge's own
    std::uint64_t local_steps = 0;
    std::uint64_t last_rate = 0;  // of the last round; bits of a float
    StepContext sent;             // of the round under way
    buffer<StepScalars, typename E::memory> sent_now;
    bool under_way = false, arrived = false;
    Range range;
    int rank;

    State(const OverlapLocalSgd& recipe, E executor, T& transport, const Layout& layout, bool clips)
        : own(transport.split(transport.rank(), 0)),
          inner(recipe.inner, executor, own, layout, clips),
          exchange(executor, transport, layout, layout.range(), Dense{}, None{}),
          mean(layout.size()),
          merged(layout.size()),
          sent_now(1),
          range(layout.range()),
          rank(transport.rank()) {}
    /// Completes the round under way, which peers may need, unless something has gone wrong already.
    ~State() {
      if (std::uncaught_exceptions() > exceptions_) return;
      try {
        land();
      } catch (const error&) {
        // A peer that is gone has said so elsewhere, or will.
      }
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    bool full_precision() const { return inner.full_precision(); }

    /// Keeps this step's context for the round that starts in it: it ends in another.
    template <class Input>
    void remember(const Input& input) {
      copy(input.executor, view<const StepScalars, typename E::memory>(input.context.now, 1), sent_now.all());
      sent = input.context;
      sent.now = sent_now.data();
    }
    /// Settles what has come in of the round under way.
    void advance() {
      if (under_way && !arrived) arrived = exchange.resume(Nothing{}).ready();
    }
    /// Completes the round under way, if there is one.
    void land() {
      if (!under_way) return;
      auto pending = exchange.resume(Nothing{}, arrived);
      const detail::WriteMean write{mean.data()};
      exchange.finish(sent, pending, Message{write, write});
      exchange.settle(sent);
      under_way = arrived = false;
    }
    template <class Visit>
    void walk(Visit&& visit) {
      land();
      visit("local_steps", local_steps);
      visit("last_outer_rate", last_rate);
      visit("mean", mean.all(), index_t{0});
      visit("merged", merged.all(), index_t{0});
      inner.walk([&](const std::string& name, auto&&... rest) {
        visit("inner_" + name, std::forward<decltype(rest)>(rest)...);
      });
    }

   private:
    /// Messages are evaluated when a round starts, never later.
    struct Silence {
      TERSE_HD float operator()(const Piece&, index_t) const { return 0; }
    };
    using Nothing = Message<Silence, Silence>;

    int exceptions_ = std::uncaught_exceptions();
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(state.last_rate));
    now.outer_ratio = last > 0 ? inner.learning_rate / last : 0;
    inner.prepare(input, state.inner, now);
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
    detail::by_itself(state.rank, [&] { inner.enqueue(input, state.inner); });
    if (!meets(state)) {
      state.advance();
      return;
    }
    state.land();
    for_each(input.executor, range, merge.step(x, mean, own, input.context.now));
    const auto message = merge.message(x, mean, own);
    state.remember(input);
    (void)state.exchange.start(state.sent, {}, Message{message, message});
    state.under_way = true;
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    detail::by_itself(state.rank, [&] { inner.complete(input, state.inner); });
    if (meets(state)) state.last_rate = std::bit_cast<std::uint32_t>(inner.learning_rate);
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
