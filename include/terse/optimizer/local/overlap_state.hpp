// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "terse/optimizer/local/outer_step.hpp"

namespace terse::detail {

/// What changes in OverlapLocalSgd, with the round under way.
template <class Inner, Topology P, Transport T, Executor E>
struct OverlapState {
  using Arena = buffer<float, typename E::memory>;

  T own;  // a world of this rank alone
  typename Composed<Inner>::template State<T, E> inner;
  /// In one slice: parameters change while it is under way.
  Exchange<Dense, None, EarlyDenseTopologyOf<P>, T, E> exchange;
  Arena mean, merged;  // what has come in last, and Merge's own
  std::uint64_t local_steps = 0;
  std::uint64_t last_rate = 0;  // of the last round; bits of a float
  StepContext sent;             // of the round under way
  buffer<StepScalars, typename E::memory> sent_now;
  bool under_way = false;
  Range range;
  int rank;

  template <class Recipe>
  OverlapState(const Recipe& recipe, E executor, T& transport, const Layout& layout, const Options& options)
      : own(transport.split(transport.rank(), 0)),
        inner(composed(recipe.inner), executor, own, layout, options),
        exchange(executor, transport, layout, layout.range(), Dense{}, None{}),
        mean(layout.size()),
        merged(layout.size()),
        sent_now(1),
        range(layout.range()),
        rank(transport.rank()) {}
  /// Completes the round under way, which peers may need, unless something has gone wrong already.
  ~OverlapState() {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      land();
    } catch (const std::exception&) {
      // A peer that is gone has said so elsewhere, or will.
    }
  }
  OverlapState(const OverlapState&) = delete;
  OverlapState& operator=(const OverlapState&) = delete;
  bool full_precision() const { return inner.full_precision(); }
  bool clips_mean() const { return detail::clips_mean(inner); }
  /// What is left of a round leaves in the step in which the next one begins at the latest: together one round's.
  StepBytes bytes_per_step() const { return {exchange.most_bytes(), 0}; }

  /// Keeps this step's context for the round that starts in it: it ends in another.
  template <class Input>
  void remember(const Input& input) {
    copy(input.executor, view<const StepScalars, typename E::memory>(input.context.now, 1), sent_now.all());
    sent = input.context;
    sent.now = sent_now.data();
  }
  /// Settles what has come in of the round under way.
  void advance() {
    if (under_way) exchange.ready();
  }
  /// Completes the round under way, if there is one.
  void land() {
    if (!under_way) return;
    const detail::WriteMean write{mean.data()};
    exchange.finish(Message{write, write});
    exchange.settle(sent);
    under_way = false;
  }
  template <class Visit>
  void walk_buffers(Visit&& visit) requires requires {
    inner.walk_buffers(visit);
  }
  { inner.walk_buffers(visit); }
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
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace terse::detail
