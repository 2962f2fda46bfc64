// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#include "terse/exchange/message_under_way.hpp"
#include "terse/exchange/rounds.hpp"

namespace terse {

/// The common part of every optimizer: error feedback x compressor x topology x channel over one range.
///
/// `message` is evaluated exactly once for each element, piece by piece in an order that the topology
/// chooses; `consume` is called exactly once for each element with the mean. In between, the inputs of `message`
/// must not change. Takes all memory, and its own channel, at construction (collective); a
/// round allocates nothing.
template <Compressor C, ErrorFeedback F, Topology P, Executor E>
class Exchange {
  static_assert(detail::check_feedback<C, F>() && check_topology<P>() && detail::check_stages<C, F, P>());

 public:
  /// With `note`, 8 bytes of each packet carry the dense part's squared norm, see `mean_norm`. Packets of exact
  /// topologies are sent in slices of about `slice_bytes` bytes, a few of which are in flight at a time; 0 means one
  /// slice.
  Exchange(E executor, Channel& transport, const Layout& layout, const Range& range, const C& compressor,
           const F& feedback = {}, bool note = false, const P& topology = {}, index_t slice_bytes = 0)
      : rounds_(make_rounds(slice_bytes, executor, transport, compressor, feedback, layout, range, note,
                            topology)),
        compresses_(!C::lossless && transport.size() > 1) {}
  // Rounds and tickets contain pointers to the exchange.
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Begins a round without reading `message`. The round is in flight until `finish`, or until another one begins.
  template <class M>
  void open(const StepContext& context, Mask<typename E::memory> mask, const M& message) {
    begin(context, mask, message);
    open_ = true;
  }
  /// Declares the inputs of `message` in this segment final, see `open`. Starts and advances slices without waiting. Call it once
  /// for each segment, in any order. Hierarchies and mixing wait for `start`.
  void allow(index_t segment) {
    if constexpr (requires { rounds_.allow(segment); }) {
      rounds_.allow(segment);
      progress();
    }
  }
  /// Advances an open round, without waiting.
  void progress() {
    if (open_) ready();
  }
  /// Begins a round, or continues an open one, with the same message: evaluates and encodes the rest of the message, and
  /// posts the first phase. Topologies that evaluate late evaluate messages in later phases, too.
  template <class M>
  void start(const StepContext& context, Mask<typename E::memory> mask, const M& message) {
    if (!std::exchange(open_, false)) begin(context, mask, message);
    rounds_.start(message);
  }
  /// Settles a complete phase of the round in flight and posts the next, without waiting. Returns true once `arrive` and
  /// `finish` won't have to wait.
  bool ready() {
    if (!arrived_) arrived_ = message_.advance(*this, false);
    return arrived_;
  }
  /// Waits for all packets; the mean can be consumed from this point on. Throws peer_error and, on the host,
  /// non_finite_error or wire_error.
  void arrive() {
    while (!arrived_) arrived_ = message_.advance(*this, true);
    rounds_.arrived(context_.on_non_finite == NonFinite::throw_);
    message_.read(*this);
  }

  /// Passes the mean to `consumer`.
  template <class Consumer>
  void consume(const Consumer& consumer) {
    rounds_.consume(consumer);
  }

  /// Returns f, a functor for a verb after `arrive`, which does nothing if a device has found an error in this round.
  template <class Functor>
  auto gated(const Functor& f) const {
    return rounds_.gated(f);
  }

  /// Calls `arrive` and `consume`.
  template <class Consumer>
  void finish(const Consumer& consumer) {
    arrive();
    consume(consumer);
  }

  /// Throws an error that a device has found since the round began, non_finite_error or wire_error. In this case the mean has not
  /// been consumed. Waits for the device. On the host `arrive` has thrown the error. Throws peer_error if the transport works in
  /// the stream's order and a peer is late. `context` is this step's context. In a replayed round it differs from the context with
  /// which the round was started.
  void settle(const StepContext& context) { rounds_.settle(context.step); }

  /// Calls `start` and `finish`.
  template <class M, class Consumer>
  void mix(const StepContext& context, Mask<typename E::memory> mask, const M& message,
           const Consumer& consumer) {
    start(context, mask, message);
    finish(consumer);
  }

  /// Returns the Euclidean norm of the mean's dense part, equal on all ranks; after `arrive`, in an exchange with `note`.
  double mean_norm() { return std::sqrt(rounds_.notes()); }

  /// Returns the range of the compressed elements.
  const Range& compressed() const { return rounds_.compressed(); }
  /// Returns the bytes that this rank sends in a round, including headers: exactly or, for packets of variable size, at most. `told`
  /// is true for messages that are notified of their decoded values.
  index_t most_bytes(bool told = false) const { return rounds_.most_bytes(told); }
  /// Sets hyper-parameters of the compressor that changed between steps, equally on all ranks.
  void set_compressor(const C& compressor) { rounds_.set_compressor(compressor); }
  /// Returns this rank's view of the error feedback's state.
  auto feedback() { return rounds_.feedback(); }
  /// Returns the range that the error feedback's state covers, from the first element to the last.
  const Range& fed_back() const { return rounds_.fed_back(); }

  template <class Visit>
  void walk(Visit&& visit) {
    rounds_.walk(visit);
  }

 private:
  template <class M>
  void begin(const StepContext& context, Mask<typename E::memory> mask, const M& message) {
    context_ = context;
    arrived_ = false;
    if (compresses_ && context.compressed != nullptr) *context.compressed = true;
    rounds_.open(context, mask);
    message_.keep(message);
  }

  friend class detail::MessageUnderWay<Exchange>;
  template <class M>
  bool advance(const M& message, bool block) {
    return rounds_.advance(message, block);
  }
  /// Decodes packets whose reader needs its own message.
  template <class M>
  void read([[maybe_unused]] const M& message) {
    if constexpr (requires { rounds_.read(message); }) rounds_.read(message);
  }

  using Rounds = detail::Rounds<C, F, P, E>;
  template <class... Rest>
  static Rounds make_rounds(index_t slice_bytes, E executor, Channel& transport, const Rest&... rest) {
    if constexpr (std::is_constructible_v<Rounds, E, Channel&, const Rest&..., detail::RankNames, index_t>)
      return Rounds(executor, transport, rest..., detail::RankNames{}, slice_bytes);
    else
      return Rounds(executor, transport, rest...);
  }

  Rounds rounds_;
  detail::MessageUnderWay<Exchange> message_;
  StepContext context_;
  bool arrived_ = false, open_ = false;
  bool compresses_;
};

}  // namespace terse
