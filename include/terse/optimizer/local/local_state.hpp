// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/exchange/inner_mean.hpp"
#include "terse/optimizer/local/outer_step.hpp"

namespace terse {

/// Whom the inner recipe talks to: nobody, or all ranks (one that gossips or compresses by itself). A policy.
struct Inside {
  struct alone {
    static constexpr bool talks = false;
  };
  struct together {
    static constexpr bool talks = true;
  };
};

/// What becomes of the inner recipe's own buffers (momentum, variance) in an outer step: each rank keeps its own,
/// they start again from 0, or all ranks get their mean, at the price of n floats more for each.
enum class InnerBuffers { keep, reset, average };

namespace detail {

/// A visitor of buffers, for concepts.
struct IgnoreBuffer {
  template <class View>
  void operator()(View) const {}
};

/// Resets or averages the buffers of n floats that the policies of an inner recipe keep.
template <class Exchange, Executor E>
struct OnBuffers {
  InnerBuffers what;
  E executor;
  StepContext context;
  Exchange* exact;

  void operator()(view<float, typename E::memory> part) const {
    if (what == InnerBuffers::reset) {
      fill(executor, part, 0.0F);
      return;
    }
    const ReadArena read{part.data()};
    const WriteMean write{part.data()};
    exact->mix(context, {}, Message{read, read}, Message{write, write});
    exact->settle(context);
  }
};

/// What changes in LocalUpdates, and when ranks meet.
template <class Inner, class Outer, class Where, Compressor C, ErrorFeedback F, Topology P, Transport T,
          Executor E>
struct LocalState {
  using Arena = buffer<float, typename E::memory>;

  /// Whether ranks send how they moved, rather than where they are.
  static constexpr bool sends_moves = Outer::keeps_anchor || !C::lossless;
  static constexpr bool shows_buffers =
      requires(typename Composed<Inner>::template State<T, E> & state, IgnoreBuffer ignore) {
    state.walk_buffers(ignore);
  };

  T own;  // a world of this rank alone
  typename Composed<Inner>::template State<T, E> inner;
  Exchange<C, F, P, T, E> outer;
  std::optional<DenseExchange<P, T, E>> exact;  // of gradients and buffers
  Arena anchor, velocity, mean;
  std::uint64_t local_steps = 0;
  std::uint64_t last_rate = 0;  // of the last outer step; bits of a float
  std::uint64_t average_until;
  InnerBuffers buffers;
  Range range;
  index_t buffer_count = 0;  // of the inner recipe, of n floats
  int rank_alone;            // -1: the inner recipe is not alone

  template <class Recipe>
  LocalState(const Recipe& recipe, E executor, T& transport, const Layout& layout, const Options& options)
      : own(transport.split(transport.rank(), 0)),
        inner(composed(recipe.inner), executor, Where::talks ? transport : own, layout, options),
        outer(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback, false,
              recipe.topology),
        average_until(recipe.average_gradients_until),
        buffers(recipe.inner_buffers),
        range(layout.range()),
        rank_alone(Where::talks ? -1 : transport.rank()) {
    if (!shows_buffers && buffers != InnerBuffers::keep)
      throw usage_error(
          "this inner recipe has no buffers that could be reset or averaged: inner_buffers must be keep",
          transport.rank());
    const bool averages = average_until > 0 || always_averages(recipe.period);
    if (averages || buffers == InnerBuffers::average)
      exact.emplace(executor, transport, layout, layout.range(), Dense{}, None{}, false,
                    dense_topology(recipe.topology), options.slice_bytes);
    if constexpr (shows_buffers) inner.walk_buffers([this](auto) { ++buffer_count; });
    if (averages) mean = Arena(layout.size());
    if (sends_moves) anchor = Arena(layout.size());
    if (Outer::keeps_anchor) velocity = Arena(layout.size());
  }

  bool full_precision() const { return inner.full_precision(); }
  bool clips_mean() const { return detail::clips_mean(inner); }
  StepBytes bytes_per_step() const {
    const StepBytes within = inner.bytes_per_step();
    index_t outside = outer.most_bytes();
    const index_t average = exact ? exact->most_bytes() : 0;
    if constexpr (shows_buffers)
      if (buffers == InnerBuffers::average) outside += buffer_count * average;
    if (!C::lossless)
      return {std::max(within.full_precision, average),
              std::max(within.full_precision, within.compressed) + outside};
    return {std::max(within.full_precision + outside, average),
            within.compressed > 0 ? within.compressed + outside : 0};
  }
  bool always_averages(std::uint64_t period) const {
    return !Where::talks && !sends_moves && period == 1 && buffers == InnerBuffers::keep;
  }
  /// A period that has become 1 since construction finds no room for a mean gradient.
  bool averages_gradients(std::uint64_t period, std::uint64_t step) const {
    return step <= average_until || (always_averages(period) && mean.size() > 0);
  }
  bool steps_outside(std::uint64_t period, std::uint64_t step) const {
    return step > average_until && (step - average_until) % period == 0 && !averages_gradients(period, step);
  }

  /// The inner recipe's buffers after an outer step.
  template <class Input>
  void treat_buffers(const Input& input) {
    if (buffers == InnerBuffers::keep) return;
    if constexpr (shows_buffers)
      inner.walk_buffers(OnBuffers<DenseExchange<P, T, E>, E>{buffers, input.executor, input.context,
                                                              exact ? &*exact : nullptr});
  }
  template <class Visit>
  void walk_buffers(Visit&& visit) requires shows_buffers {
    inner.walk_buffers(visit);
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

}  // namespace detail

}  // namespace terse
