// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/core/non_finite.hpp"
#include "terse/exchange/message_under_way.hpp"
#include "terse/topology/alone.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// What holds for one step, on this rank.
struct StepContext {
  std::uint64_t step = 0;  ///< counts from 1
  std::uint64_t seed = 0;
  std::uint64_t agreement =
      0;  ///< hash of the hyper-parameters in force; packets of other values are refused
  NonFinite on_non_finite = NonFinite::throw_;
  float learning_rate = 0;           ///< for error feedbacks that follow it
  const StepScalars* now = nullptr;  ///< this step's scalars, in the executor's memory

  StepContext at_rate(float rate) const {
    StepContext other = *this;
    other.learning_rate = rate;
    return other;
  }
};

namespace detail {

/// What carries full-precision packets for a topology: itself, or what it names as ForDense; for those that mix with
/// neighbours ScatterGather.
template <class T>
struct DenseTopology {
  using type = std::conditional_t<T::exact, T, ScatterGather>;
};
template <class T>
requires requires { typename T::ForDense; }
struct DenseTopology<T> {
  using type = typename T::ForDense;
};

}  // namespace detail
template <class T>
using DenseTopologyOf = typename detail::DenseTopology<T>::type;
/// The one that goes with this topology, its parameters included.
template <class T>
DenseTopologyOf<T> dense_topology(const T& topology) {
  if constexpr (std::is_same_v<DenseTopologyOf<T>, T>)
    return topology;
  else
    return {};
}

/// The shared middle of every optimizer: error feedback x compressor x topology x channel over one range.
///
/// `message` is evaluated exactly once for each element, piece by piece in an order that the topology
/// chooses; `consume` is called exactly once for each element with the mean. Between the two nobody may
/// change what `message` reads. Takes all memory, and a channel of its own, at construction (collective); a
/// round allocates nothing.
template <Compressor C, ErrorFeedback F, Topology P, Transport T, Executor E>
class Exchange {
  static_assert(check_feedback<C, F>() && check_stages<C, F, P>());
  using Context = RoundContext<C, F, T, E>;
  using Round = typename detail::RoundOf<C, F, P, T, E>::type;

 public:
  /// With `note` the dense part's squared norm travels in 8 bytes of each packet, see `mean_norm`.
  Exchange(E executor, T& transport, const Layout& layout, const Range& range, const C& compressor,
           const F& feedback = {}, bool note = false, const P& topology = {})
      : round_context_(executor, transport.split(0, transport.rank()), compressor, feedback, layout, range,
                       note),
        round_(make_round(round_context_, topology)) {}
  // Rounds and tickets point into it.
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Begins a round, which is under way until `finish`, or until another one begins: evaluates and encodes this rank's
  /// message and posts the first phase. Where the topology evaluates messages late, in later phases too.
  template <class M>
  void start(const StepContext& context, Mask<typename E::memory> mask, const M& message) {
    context_ = context;
    arrived_ = false;
    round_context_.open(context.step, context.seed, context.agreement, context.learning_rate, mask,
                        context.now);
    message_.keep(message);
    round_.start(round_context_, message);
  }
  /// Settles a phase of the round under way that is complete and posts the next, without waiting; true once `arrive` and
  /// `finish` will not wait.
  bool ready() {
    if (!arrived_) arrived_ = message_.advance(*this, false);
    return arrived_;
  }
  /// Waits for all packets; the mean can be consumed from here on. Throws peer_error and, on the host,
  /// non_finite_error or wire_error.
  void arrive() {
    while (!arrived_) arrived_ = message_.advance(*this, true);
    round_context_.arrived(context_.on_non_finite == NonFinite::throw_);
  }

  /// Hands the mean to `consumer`.
  template <class Consumer>
  void consume(const Consumer& consumer) {
    round_.consume(round_context_, consumer);
  }

  /// f, a functor of a verb after `arrive`, so that it does nothing where a device has found an error in this round.
  template <class Functor>
  auto gated(const Functor& f) const {
    return round_context_.envelope.gated(f);
  }

  /// arrive and consume in one.
  template <class Consumer>
  void finish(const Consumer& consumer) {
    arrive();
    consume(consumer);
  }

  /// Throws what a device has found wrong since the round began, non_finite_error or wire_error: there the mean has
  /// not been consumed. Waits for the device. On the host `arrive` has thrown it. Throws peer_error where the
  /// transport works in the stream's order and a peer is late. `context` is this step's, which of a replayed round is not the
  /// one that it was started with.
  void settle(const StepContext& context) {
    await_messages(round_context_.channel);
    round_context_.settle(context.step);
  }

  /// start and finish in one.
  template <class M, class Consumer>
  void mix(const StepContext& context, Mask<typename E::memory> mask, const M& message,
           const Consumer& consumer) {
    start(context, mask, message);
    finish(consumer);
  }

  /// Euclidean norm of the mean's dense part, equal on all ranks; after `arrive`, in an exchange with `note`.
  double mean_norm() {
    await_messages(round_context_.channel);
    return std::sqrt(round_.notes(round_context_.executor));
  }

  const Plan& plan() const { return round_context_.plan; }
  /// Takes over hyper-parameters of the compressor that changed between steps, alike on all ranks.
  void set_compressor(const C& compressor) { round_context_.codec.set_compressor(compressor); }
  /// This rank's view of the error feedback's state.
  auto feedback() { return round_context_.codec.feedback(); }

  template <class Visit>
  void walk(Visit&& visit) {
    round_context_.codec.walk(visit);
    round_.walk(visit);
  }

 private:
  /// Some topologies have parameters.
  static Round make_round(Context& context, const P& topology) {
    if constexpr (std::is_constructible_v<Round, Context&, const P&>)
      return Round(context, topology);
    else
      return Round(context);
  }

  friend class detail::MessageUnderWay<Exchange>;
  template <class M>
  bool advance(const M& message, bool block) {
    return round_.advance(round_context_, message, block);
  }

  Context round_context_;
  Round round_;
  detail::MessageUnderWay<Exchange> message_;
  StepContext context_;
  bool arrived_ = false;
};

}  // namespace terse
