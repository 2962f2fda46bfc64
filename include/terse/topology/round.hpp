// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "terse/topology/concept.hpp"

// What rounds of topologies are made of.

namespace terse {

TERSE_NUMERICS_BEGIN

/// The second stage's message: the mean over what came in.
struct MeanOf {
  float weight;
  using StreamsOf = MeanOf;
  TERSE_HD static detail::Streams<> streams() { return {}; }
  TERSE_HD float operator()(const Piece&, index_t, float sum) const { return sum * weight; }
  TERSE_HD float operator()(const Piece&, index_t) const { return 0; }
};

/// A rank's message on top of what came in.
template <class F>
struct PlusArrived {
  F message;
  using StreamsOf = PlusArrived;
  TERSE_HD auto streams() requires NamesStreams<F> { return message.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return message(piece, i); }
  TERSE_HD float operator()(const Piece& piece, index_t i, float sum) const {
    return message(piece, i) + sum;
  }
  TERSE_HD void sent(index_t i, bool keep, float decoded) const requires requires(const F& f, index_t k) {
    f.sent(k, true, 0.0F);
  }
  { message.sent(i, keep, decoded); }
};
template <class Compressed, class Exact>
auto plus_arrived(const Message<Compressed, Exact>& message) {
  return Message{PlusArrived<Compressed>{message.compressed}, PlusArrived<Exact>{message.dense}};
}

TERSE_NUMERICS_END

/// Whether a batch is done; with `block` it waits until it is.
template <class Ticket>
bool settled(Ticket& ticket, bool block) {
  if (!block) return ticket.ready();
  ticket.wait();
  return true;
}

/// What hands a compressed element's sum to its consumer, past the error feedback, as a functor of a verb.
template <class Context, class F>
auto delivery(Context& context, const F& consumer, float weight) {
  using View = decltype(context.codec.feedback());
  if constexpr (requires(View view) { view.receive(index_t{}, true, 0.0F); })
    return context.envelope.gated(detail::Deliver<F, View>{consumer, weight, context.codec.feedback()});
  else
    return context.envelope.gated(detail::Deliver<F, detail::AsItIs>{consumer, weight, {}});
}

/// Decodes one or more packets over a portion and hands each element's weighted sum to its consumer.
template <class Context, class C, class Consumer>
void deliver(Context& context, const Portion& portion, Inbox<C>& inbox, float weight,
             const Consumer& consumer) {
  if constexpr (!C::lossless)
    if (!context.dense_only)
      for_each(context.executor, portion.compressed, context.mask,
               context.codec.arrived(portion.compressed, inbox),
               delivery(context, consumer.compressed, weight));
  for_each(context.executor, portion.dense, NoMask{}, inbox.dense(),
           context.envelope.gated(
               detail::Deliver<decltype(consumer.dense), detail::AsItIs>{consumer.dense, weight, {}}));
}

/// The note of a packet from `sender`: the squared norm of its full-precision part. On a device it waits.
template <class E>
double note_of(E executor, const std::byte* packet, const Portion& portion, int sender) {
  float note = 0;
  fetch(executor, in<E>(reinterpret_cast<const float*>(packet + portion.note_at), 1), view<float>(&note, 1));
  if (!(note >= 0 && note <= std::numeric_limits<float>::max()))
    throw wire_error("the packet from rank " + std::to_string(sender) +
                     " was damaged on its way: it has a norm that is not finite");
  return static_cast<double>(note);
}

/// The spreading half: packet c, owned by rank (c + shift) mod W, reaches everybody in one batch, unchanged.
template <class T, class E>
class Spread {
 public:
  Spread(std::vector<const Portion*> portions, int rank, int size, int shift)
      : portions_(std::move(portions)), mine_((rank - shift + size) % size), shift_(shift) {
    index_t bytes = 0;
    for (const Portion* portion : portions_)
      places_.push_back(std::exchange(bytes, bytes + aligned(portion->bytes)));
    packets_ = buffer<std::byte, typename E::memory>(bytes, unwritten);
    // To the successor first, see ScatterGather.
    for (int distance = 1; distance < size; ++distance) {
      const int peer = (rank + distance) % size, c = (peer - shift + size) % size;
      const index_t room = portion(mine_).bytes;
      sends_.push_back({peer, packet(mine_), room, room});
      receives_.push_back({peer, packet(c), portion(c).bytes, portion(c).variable});
    }
  }

  int mine() const { return mine_; }
  std::byte* packet(int c) { return packets_.data() + places_[static_cast<std::size_t>(c)]; }
  const Portion& portion(int c) const { return *portions_[static_cast<std::size_t>(c)]; }
  int size() const { return static_cast<int>(portions_.size()); }

  /// What this rank sends, at most.
  index_t most_bytes() const { return (size() - 1) * portion(mine_).bytes; }

  /// Sends this rank's packet of `bytes` bytes and receives the others'.
  auto post(T& channel, index_t bytes) {
    for (Send& send : sends_) send.bytes = bytes;
    return channel.exchange(sends_, receives_, Phase::spread);
  }

  template <class Context>
  void accept(Context& context) {
    context.together([&] {
      for (int c = 0; c < size(); ++c)
        if (c != mine_) context.accept(packet(c), portion(c), Phase::spread, c, (c + shift_) % size());
    });
  }

  /// Sum over the packets' notes, in order. On a device it waits.
  double notes(E executor) {
    double sum = 0;
    for (int c = 0; c < size(); ++c) sum += note_of(executor, packet(c), portion(c), (c + shift_) % size());
    return sum;
  }

 private:
  std::vector<const Portion*> portions_;
  int mine_, shift_;
  std::vector<index_t> places_;  // of packets in their buffer
  buffer<std::byte, typename E::memory> packets_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// A chunk's portions in chunk order, for Spread.
inline std::vector<const Portion*> portions_of(const Plan& plan) {
  std::vector<const Portion*> portions;
  for (const Portion& chunk : plan.chunks) portions.push_back(&chunk);
  return portions;
}

}  // namespace terse
