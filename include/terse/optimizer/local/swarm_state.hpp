// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "terse/exchange/inner_mean.hpp"
#include "terse/exchange/keyed_mixing.hpp"
#include "terse/graph/random_matching.hpp"
#include "terse/graph/spaced.hpp"
#include "terse/optimizer/local/inner.hpp"
#include "terse/optimizer/local/swarm_functors.hpp"
#include "terse/topology/pairing.hpp"

namespace terse {

/// The time at which two ranks that meet mix their parameters: at once, while both wait, or after each rank's next
/// local steps, during which messages are in flight.
enum class Meeting { blocking, non_blocking };

namespace detail {

/// The mutable state of SwarmSgd, and the meeting in flight.
template <class Inner, Compressor C, graph::PairGraph G, Meeting Form, Executor E>
struct SwarmState {
  using Schedule = graph::Spaced<G>;
  using Topology = std::conditional_t<C::lossless, Pairing<Schedule>, Mixing<Schedule>>;

  Channel own;  // a world of this rank alone
  typename Composed<Inner>::template State<E> inner;
  Exchange<C, NoErrorFeedback, Topology, E> exchange;
  Schedule schedule;
  /// The sent parameters and, after that meeting has been applied, its result; non-blocking only.
  buffer<float, typename E::memory> copy;
  StepContext sent;  // the context of the meeting in flight
  buffer<StepScalars, typename E::memory> sent_now;
  bool under_way = false;
  bool waits = false;  // `copy` has the sent parameters, not the meeting's result
  Range range;
  int rank, size;

  template <class Recipe>
  SwarmState(const Recipe& recipe, E executor, Channel& transport, const Layout& layout,
             const Options& options)
      : own(transport.split(transport.rank(), 0)),
        inner(composed(recipe.inner), executor, own, layout, inner_options(options, true)),
        exchange(executor, transport, layout, layout.range(), recipe.compressor, NoErrorFeedback{}, false,
                 Topology{recipe.schedule}),
        schedule(recipe.schedule),
        sent_now(1),
        range(layout.range()),
        rank(transport.rank()),
        size(transport.size()) {
    if (Form == Meeting::non_blocking) copy = buffer<float, typename E::memory>(layout.size());
  }
  ~SwarmState() {
    at_end_([this] { land(); });
  }
  SwarmState(const SwarmState&) = delete;
  SwarmState& operator=(const SwarmState&) = delete;

  bool full_precision() const { return inner.full_precision(); }
  MaskedElements& masked_elements() requires Freezes<typename Composed<Inner>::template State<E>> {
    return inner.masked_elements();
  }
  bool clips_mean() const { return detail::clips_mean(inner); }
  StepBytes bytes_per_step() const {
    return C::lossless ? StepBytes{exchange.most_bytes(), 0} : StepBytes{0, exchange.most_bytes()};
  }
  bool meets(std::uint64_t step) const { return schedule.partner(rank, size, step - 1) >= 0; }

  /// Sends `copy` to the partner of this step; the meeting ends in a later step.
  template <class Input>
  void start(const Input& input) {
    using terse::copy;  // for a grid executor, the arguments select another function
    copy(input.executor, view<const StepScalars, typename E::memory>(input.context.now, 1), sent_now.all());
    sent = input.context;
    sent.now = sent_now.data();
    waits = true;
    exchange.start(sent, {}, one_vector(ReadArena{this->copy.data()}));
    under_way = true;
  }
  /// Receives messages of the meeting in flight that have arrived, so that the partner's sends also complete.
  void advance() {
    if (under_way) exchange.ready();
  }
  /// Completes the meeting in flight, if there is one.
  void land() {
    if (!under_way) return;
    using Keep = std::conditional_t<C::lossless, KeepGain, KeepDifference>;
    exchange.finish(one_vector(Keep{copy.data()}));
    exchange.settle(sent);
    under_way = waits = false;
  }
  /// Drops the meeting in flight, which then adds nothing.
  void drop_rounds(E executor) {
    if (std::exchange(waits, false)) fill(executor, copy.all(), 0.0F);
    under_way = false;
    detail::drop_rounds(inner, executor);
  }
  template <class Visit>
  void walk_buffers(Visit&& visit) requires requires {
    inner.walk_buffers(visit);
  }
  { inner.walk_buffers(visit); }
  template <class Visit>
  void walk(Visit&& visit) {
    land();
    if (Form == Meeting::non_blocking) visit("met", copy.all(), index_t{0});
    walk_inner(inner, visit);
  }

 private:
  AtEnd at_end_;
};

}  // namespace detail

}  // namespace terse
