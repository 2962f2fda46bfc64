// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/optimizer/local/outer_step.hpp"
#include "terse/topology/inner_mean.hpp"

namespace terse {

/// Whom the inner recipe talks to: nobody, or all ranks (one that gossips or compresses by itself).
enum class Inside { alone, together };

/// What becomes of the inner recipe's own buffers (momentum, variance) in an outer step: each rank keeps its own,
/// they start again from 0, or all ranks get their mean, at the price of n floats more for each.
enum class InnerBuffers { keep, reset, average };

/// Local update methods around any recipe: `period` steps of the inner recipe, then one outer step over all ranks.
/// The family that LocalSgd, PostLocalSgd, SlowMo, Bmuf and DiLoCo are members of.
///
///     each step           inner step on x_i with this rank's gradient
///     each period-th      Outer, from the mean over ranks of x_i, or of anchor - x_i, see OuterMomentum
///
/// In the first `average_gradients_until` steps (post-local SGD), and always where period is 1, Outer plain and
/// buffers are kept, ranks average gradients instead and make the same inner step: bit for bit what the inner recipe
/// does over exact averages. Moves may be compressed with any compressor and feedback; PlainAverage keeps an anchor
/// then, too.
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
template <class Inner, class Outer = PlainAverage, Inside Where = Inside::alone, Compressor C = Dense,
          ErrorFeedback F = None, Topology P = ScatterGather>
struct LocalUpdates {
  static_assert(check_recipe<Inner>() && check_compressor<C>() && check_feedback<C, F>() &&
                check_stages<C, F, P>());
  static_assert(
      !detail::is_blind<Inner>(),
      "terse: messages of an inner recipe must show its gradient; this one sends before it is known");
  static_assert(P::exact, "terse: an outer step needs a topology that gives all ranks the same mean");

  Inner inner{};
  std::uint64_t period = 8;
  std::uint64_t average_gradients_until = 0;  ///< steps
  Outer outer{};
  InnerBuffers inner_buffers = InnerBuffers::keep;
  C compressor{};
  F error_feedback{};

  void check() const {
    inner.check();
    detail::require(period >= 1, "period must be at least 1", static_cast<double>(period));
    detail::require(
        Where == Inside::alone || average_gradients_until == 0,
        "only inner recipes that run alone can average gradients first; average_gradients_until must be 0",
        static_cast<double>(average_gradients_until));
    outer.check();
    detail::check_policy(compressor);
    detail::check_policy(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    inner.settings(visit);
    visit("period", static_cast<double>(period));
    visit("average_gradients_until", static_cast<double>(average_gradients_until));
    outer.settings(visit);
    visit("inner_buffers", static_cast<double>(inner_buffers));
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
  }
  /// Steps differ in more than numbers.
  static bool recordable() { return false; }

 private:
  /// Whether ranks send how they moved, rather than where they are.
  static constexpr bool sends_moves = Outer::keeps_anchor || !C::lossless;

 public:
  template <Transport T, Executor E>
  struct State {
    using Arena = buffer<float, typename E::memory>;

    T own;  // a world of this rank alone
    typename Inner::template State<T, E> inner;
    Exchange<C, F, P, T, E> outer;
    std::optional<DenseExchange<P, T, E>> exact;  // of gradients and buffers
    Arena anchor, velocity, mean;
    std::uint64_t local_steps = 0;
    std::uint64_t last_rate = 0;  // of the last outer step; bits of a float
    std::uint64_t average_until;
    InnerBuffers buffers;
    Range range;
    int rank;

    State(const LocalUpdates& recipe, E executor, T& transport, const Layout& layout, bool clips)
        : own(transport.split(transport.rank(), 0)),
          inner(recipe.inner, executor, Where == Inside::alone ? own : transport, layout, clips),
          outer(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback),
          average_until(recipe.average_gradients_until),
          buffers(recipe.inner_buffers),
          range(layout.range()),
          rank(transport.rank()) {
      const bool averages = average_until > 0 || always_averages(recipe);
      if (averages || buffers == InnerBuffers::average)
        exact.emplace(executor, transport, layout, layout.range(), Dense{}, None{});
      if (averages) mean = Arena(layout.size());
      if (sends_moves) anchor = Arena(layout.size());
      if (Outer::keeps_anchor) velocity = Arena(layout.size());
    }
    bool full_precision() const { return inner.full_precision(); }
    bool always_averages(const LocalUpdates& recipe) const {
      return Where == Inside::alone && !sends_moves && recipe.period == 1 && buffers == InnerBuffers::keep;
    }
    /// A period that has become 1 since construction finds no room for a mean gradient.
    bool averages_gradients(const LocalUpdates& recipe, std::uint64_t step) const {
      return step <= average_until || (always_averages(recipe) && mean.size() > 0);
    }
    bool steps_outside(const LocalUpdates& recipe, std::uint64_t step) const {
      return step > average_until && (step - average_until) % recipe.period == 0 &&
             !averages_gradients(recipe, step);
    }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("local_steps", local_steps);
      visit("last_outer_rate", last_rate);
      if (sends_moves) visit("anchor", anchor.all(), index_t{0});
      if (Outer::keeps_anchor) visit("outer_velocity", velocity.all(), index_t{0});
      outer.walk([&](const std::string& name, auto&&... rest) {
        visit("outer_" + name, std::forward<decltype(rest)>(rest)...);
      });
      inner.walk([&](const std::string& name, auto&&... rest) {
        visit("inner_" + name, std::forward<decltype(rest)>(rest)...);
      });
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(state.last_rate));
    now.outer_ratio = Outer::follows_rate ? (last > 0 ? inner.learning_rate / last : 0) : 1;
    inner.prepare(input, state.inner, now);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    const std::uint64_t step = state.local_steps + 1;
    if (sends_moves && step == state.average_until + 1)
      for_each(input.executor, state.range,
               detail::KeepAnchor<typename N::parameter>{input.parameters, state.anchor.data()});
    if (state.averages_gradients(*this, step)) {
      const StepInput<E, Numbers<typename N::parameter, float>> averaged{
          input.executor,  input.layout,     input.context,
          input.clip_norm, input.parameters, average(input, state)};
      inner.enqueue(averaged, state.inner);
    } else {
      detail::by_itself(rank_alone(state), [&] { inner.enqueue(input, state.inner); });
    }
    if (state.steps_outside(*this, step)) step_outside(input, state);
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    detail::by_itself(rank_alone(state), [&] { inner.complete(input, state.inner); });
    if (state.steps_outside(*this, state.local_steps + 1)) {
      state.outer.settle(input.context);
      state.last_rate = std::bit_cast<std::uint32_t>(inner.learning_rate);
    }
    ++state.local_steps;
  }

 private:
  template <class S>
  static int rank_alone(const S& state) {
    return Where == Inside::alone ? state.rank : -1;
  }

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
    const StepContext context = input.context.at_rate(inner.learning_rate);
    if constexpr (!C::lossless) state.outer.set_compressor(compressor);
    if constexpr (!sends_moves) {
      const detail::ReadParameters<Number> read{x};
      const detail::TakeMean<Number> take{x};
      state.outer.mix(context, {}, Message{read, read}, Message{take, take});
    } else {
      const detail::Move<Number> move{x, anchor};
      if constexpr (Outer::keeps_anchor) {
        const detail::StepOutside<Number, Outer::nesterov> step{
            x, anchor, state.velocity.data(), input.context.now, outer.rate, outer.momentum};
        state.outer.mix(context, {}, Message{move, move}, Message{step, step});
      } else {
        const detail::MoveAnchor<Number> step{x, anchor};
        state.outer.mix(context, {}, Message{move, move}, Message{step, step});
      }
    }
    if (state.buffers != InnerBuffers::keep)
      state.inner.walk(
          OnBuffers<T, E>{state.buffers, input.executor, input.layout, input.context, state.exact});
  }

  /// Resets or averages each buffer of n floats that an inner state shows.
  template <class T, class E>
  struct OnBuffers {
    InnerBuffers what;
    E executor;
    const Layout& layout;
    StepContext context;
    std::optional<DenseExchange<P, T, E>>& exact;

    template <class Value, class Space>
    void operator()(const std::string&, view<Value, Space> part, index_t offset) const {
      if constexpr (std::is_same_v<Value, float>) {
        if (offset != 0 || part.size() != layout.size()) return;
        if (what == InnerBuffers::reset) {
          fill(executor, part, 0.0F);
          return;
        }
        const detail::ReadArena read{part.data()};
        const detail::WriteMean write{part.data()};
        exact->mix(context, {}, Message{read, read}, Message{write, write});
        exact->settle(context);
      }
    }
    void operator()(const std::string&, std::uint64_t&) const {}
  };
};

}  // namespace terse
