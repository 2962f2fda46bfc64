// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/executor/placed_ranges.hpp"
#include "terse/topology/concept.hpp"
#include "terse/topology/round_concept.hpp"
#include "terse/topology/round_context.hpp"

// Building blocks of topologies' rounds.

namespace terse {

TERSE_NUMERICS_BEGIN

/// The second stage's message: the mean of the received packets.
struct MeanOf {
  float weight;
  using StreamsOf = MeanOf;
  TERSE_HD static detail::Streams<> streams() { return {}; }
  TERSE_HD float operator()(const Piece&, index_t, float sum) const { return sum * weight; }
  TERSE_HD float operator()(const Piece&, index_t) const { return 0; }
};

TERSE_NUMERICS_END

/// Checks whether a batch is done; with `block` it waits until it is.
template <class Ticket>
bool settled(Ticket& ticket, bool block) {
  if (!block) return ticket.ready();
  ticket.wait();
  return true;
}

namespace detail {
template <class View>
concept ReceivesMeans = requires(View& view) {
  view.receive(index_t{}, true, 0.0F);
};
/// Returns a functor for verbs that passes a compressed element's sum to its consumer, without the error feedback.
template <class Context, class F>
auto delivery(Context& context, const F& consumer, float weight) {
  using View = decltype(context.codec.feedback());
  if constexpr (ReceivesMeans<View>)
    return context.envelope.gated(Deliver<F, View>{consumer, weight, context.codec.feedback()});
  else
    return context.envelope.gated(Deliver<F, AsItIs>{consumer, weight, {}});
}

/// Returns a functor for verbs that passes a dense element's sum to its consumer.
template <class Context, class F>
auto dense_delivery(Context& context, const F& consumer, float weight) {
  return context.envelope.gated(Deliver<F, AsItIs>{consumer, weight, {}});
}

}  // namespace detail

/// Decodes one or more packets over a portion and passes each element's weighted sum to its consumer.
template <class Context, class C, class Consumer>
void deliver(Context& context, const Portion& portion, Inbox<C>& inbox, float weight,
             const Consumer& consumer) {
  if constexpr (!C::lossless)
    if (!context.dense_only)
      for_each(context.executor, portion.compressed, context.mask,
               context.codec.arrived(portion.compressed, inbox),
               detail::delivery(context, consumer.compressed, weight));
  for_each(context.executor, portion.dense, NoMask{}, inbox.dense(),
           detail::dense_delivery(context, consumer.dense, weight));
}

namespace detail {

/// Checks whether kernels decode several packets, each over its own portion.
template <class C, class E>
constexpr bool delivers_together() {
  if constexpr (C::lossless || AddsTogether<C, E>)
    return GridExecutor<E>;
  else if constexpr (requires { typename C::Code; })
    return GridExecutor<E> && std::is_same_v<typename C::Incoming, Packets<typename C::Code>>;
  return false;
}

/// Delivers packet k over portions[k], up to most_packets of them.
template <class Context, class C, class Consumer>
void deliver_together(Context& context, std::span<const Portion* const> portions, Inbox<C>& inbox,
                      float weight, const Consumer& consumer) {
  std::array<PlacedRange, most_packets> placed;
  const auto all = [&](auto range_of) {
    for (std::size_t k = 0; k < portions.size(); ++k) {
      // Without {.range = ..., .packet = ...}, because nvcc 13.0 loses these names in a generic lambda.
      placed[k].range = range_of(*portions[k]);
      placed[k].packet = static_cast<int>(k);
    }
    return PlacedRanges(placed.data(), portions.size());
  };
  if constexpr (!C::lossless)
    if (!context.dense_only) {
      const PlacedRanges ranges = all([](const Portion& portion) { return &portion.compressed; });
      const auto deliver_from = [&](auto incoming) {
        for_each(context.executor, ranges, context.mask, incoming,
                 delivery(context, consumer.compressed, weight));
      };
      if constexpr (AddsTogether<C, std::remove_cvref_t<decltype(context.executor)>>)
        deliver_from(context.codec.arrived(ranges, inbox));
      else
        deliver_from(OneEach<typename C::Code>{inbox.compressed()});
    }
  for_each(context.executor, all([](const Portion& portion) { return &portion.dense; }), NoMask{},
           OneEach<Dense::Code>{inbox.dense()}, dense_delivery(context, consumer.dense, weight));
}

}  // namespace detail

/// Returns the note in a packet from `sender`, which `from`, if not -1, has forwarded: the squared norm of its full-precision part.
/// Waits for the device. All three ranks have their names in errors; `rank` is this one.
template <class E>
double note_of(E executor, const std::byte* packet, const Portion& portion, int sender, int from = -1,
               int rank = -1) {
  float note = 0;
  fetch(executor, in<E>(reinterpret_cast<const float*>(packet + portion.note_at), 1), view<float>(&note, 1));
  if (!(note >= 0 && note <= std::numeric_limits<float>::max()))
    throw wire_error(
        detail::packet_from(sender, from) + " was damaged on its way: it has a norm that is not finite",
        rank);
  return static_cast<double>(note);
}

/// The spreading half: packet c, owned by rank (c + shift) mod W, is sent to all ranks in one batch, unchanged. If ranks forward
/// packets instead, `from` is the rank from which this one receives the packets of all others.
template <class E>
class Spread {
 public:
  Spread(std::vector<const Portion*> portions, const Channel& channel, int rank, int size, int shift,
         detail::RankNames names = {}, int from = -1)
      : portions_(std::move(portions)),
        mine_((rank - shift + size) % size),
        shift_(shift),
        names_(names),
        from_(from) {
    index_t bytes = 0;
    places_.resize(portions_.size());
    // In memory they are also in this order; to and from the successor first, see ScatterGather.
    for (int distance = 1; distance <= size; ++distance) {
      const int c = (rank + distance - shift + size) % size;
      places_[static_cast<std::size_t>(c)] =
          std::exchange(bytes, bytes + channel.packet_room(portion(c).bytes));
    }
    packets_ = buffer<std::byte, typename E::memory>(bytes, uninitialized);
    for (int distance = 1; distance < size; ++distance) {
      const int peer = (rank + distance) % size, c = (peer - shift + size) % size;
      const index_t room = portion(mine_).bytes;
      sends_.push_back({peer, packet(mine_), room, room});
      receives_.push_back({peer, packet(c), portion(c).bytes, portion(c).variable});
    }
  }

  /// Spreads the chunks of the context's plan.
  template <class Context>
  explicit Spread(const Context& context, int shift = 0, int from = -1)
      : Spread(chunks_of(context.plan), context.channel, context.rank, context.size, shift, context.names,
               from) {}

  int mine() const { return mine_; }
  std::byte* packet(int c) { return packets_.data() + places_[static_cast<std::size_t>(c)]; }
  const Portion& portion(int c) const { return *portions_[static_cast<std::size_t>(c)]; }
  int size() const { return static_cast<int>(portions_.size()); }

  /// Returns the largest number of bytes that this rank sends.
  index_t most_bytes() const { return (size() - 1) * portion(mine_).bytes; }

  /// Sends this rank's packet of `bytes` bytes and receives the others'.
  auto post(Channel& channel, index_t bytes) {
    for (Send& send : sends_) send.bytes = bytes;
    return channel.exchange(sends_, receives_, Phase::spread);
  }

  template <class Context>
  void accept(Context& context) {
    context.together([&] {
      for (int c = 0; c < size(); ++c)
        if (c != mine_) context.accept(packet(c), portion(c), Phase::spread, c, owner(c));
    });
  }

  /// Passes the elements of all packets to their consumer, on a device by kernels that process many packets. `inbox` must have room
  /// for all packets.
  template <class Context, class C, class Consumer>
  void deliver(Context& context, Inbox<C>& inbox, float weight, const Consumer& consumer) {
    const auto add = [&](int c) {
      context.add(inbox, portion(c), packet(c), Phase::spread, owner(c), 1, from(c));
    };
    if constexpr (detail::delivers_together<C, E>()) {
      for (int first = 0; first < size(); first += detail::most_packets) {
        inbox.clear();
        const int count = std::min(size() - first, detail::most_packets);
        for (int k = 0; k < count; ++k) add(first + k);
        detail::deliver_together(context, {portions_.data() + first, static_cast<std::size_t>(count)}, inbox,
                                 weight, consumer);
      }
    } else {
      for (int c = 0; c < size(); ++c) {
        inbox.clear();
        add(c);
        terse::deliver(context, portion(c), inbox, weight, consumer);
      }
    }
  }

  /// Returns the sum of the packets' notes, in order. Waits for the device.
  double notes(E executor) {
    double sum = 0;
    for (int c = 0; c < size(); ++c)
      sum += note_of(executor, packet(c), portion(c), names_(owner(c)), from(c) < 0 ? -1 : names_(from(c)),
                     names_(owner(mine_)));
    return sum;
  }

 private:
  static std::vector<const Portion*> chunks_of(const Plan& plan) {
    std::vector<const Portion*> chunks;
    for (const Portion& chunk : plan.chunks) chunks.push_back(&chunk);
    return chunks;
  }
  int owner(int c) const { return (c + shift_) % size(); }
  int from(int c) const { return c == mine_ ? -1 : from_; }

  std::vector<const Portion*> portions_;
  int mine_, shift_;
  detail::RankNames names_;
  int from_;
  std::vector<index_t> places_;  // offsets of packets in their buffer
  buffer<std::byte, typename E::memory> packets_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

}  // namespace terse
