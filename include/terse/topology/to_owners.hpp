// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "terse/topology/round.hpp"

namespace terse::detail {

/// The first half of ScatterGather: each rank's packets of the chunks go to the chunks' owners, which decode them to means.
template <Compressor C, ErrorFeedback F, Executor E>
class ToOwners {
  using Context = RoundContext<C, F, E>;

 public:
  TERSE_COLD explicit ToOwners(const Context& context)
      : inbox_(context.size),
        out_(static_cast<std::size_t>(context.size)),
        in_(static_cast<std::size_t>(context.size)) {
    // In the order of messages, so that messages of a batch are adjacent in memory. To the successor first: if all began
    // with rank 0, they would wait in line for one rank after the other.
    std::byte* free = context.work;
    for (int distance = 1; distance <= context.size; ++distance) {
      const int peer = (context.rank + distance) % context.size;
      const index_t leaving = context.plan.chunks[static_cast<std::size_t>(peer)].bytes;
      std::byte* const packet = out_.at[static_cast<std::size_t>(peer)] =
          std::exchange(free, free + context.channel.packet_room(leaving));
      if (peer != context.rank) sends_.push_back({peer, packet, leaving, leaving});
    }
    const Portion& mine = context.own();
    for (int peer = 0; peer < context.size; ++peer) {
      if (peer == context.rank) continue;
      std::byte* const packet = in_[static_cast<std::size_t>(peer)] =
          std::exchange(free, free + context.channel.packet_room(mine.bytes));
      receives_.push_back({peer, packet, mine.bytes, mine.variable});
    }
  }
  static index_t work_bytes(const Context& context) {
    index_t bytes = (context.size - 1) * context.channel.packet_room(context.own().bytes);
    for (const Portion& chunk : context.plan.chunks) bytes += context.channel.packet_room(chunk.bytes);
    return bytes;
  }

  template <class M>
  void start(Context& context, const M& message) {
    context.codec.measure(context.plan.whole, context.mask, EmptyInbox{}, message);
    context.codec.encode_together(context.plan.chunks, context.mask, message, context.first, out_);
    context.note(context.codec);
    context.together([&] {
      for (int c = 0; c < context.size; ++c)
        context.stamp(out_.at[static_cast<std::size_t>(c)], out_.bytes[static_cast<std::size_t>(c)],
                      Phase::reduce, c);
    });
    for (Send& send : sends_) send.bytes = out_.bytes[static_cast<std::size_t>(send.peer)];
    under_way_.emplace(context.channel.exchange(sends_, receives_, Phase::reduce));
  }
  /// Settles the batch and fills the inbox; returns false if it has not arrived.
  bool arrived(Context& context, bool block) {
    if (!settled(*under_way_, block)) return false;
    inbox_.clear();
    context.together([&] {
      for (int peer = 0; peer < context.size; ++peer) {
        const std::byte* packet = (peer == context.rank ? out_.at : in_)[static_cast<std::size_t>(peer)];
        if (peer != context.rank) context.accept(packet, context.own(), Phase::reduce, context.rank, peer);
        context.add(inbox_, context.own(), packet, Phase::reduce, peer);
      }
    });
    return true;
  }
  /// Passes the means of this rank's chunk to their consumer.
  template <class Consumer>
  void take(Context& context, const Consumer& consumer) {
    inbox_.watch(context.damage());
    deliver(context, context.own(), inbox_, 1.0F / static_cast<float>(context.size), consumer);
  }
  /// The packets of this rank's chunk.
  Inbox<C>& inbox() { return inbox_; }
  index_t most_bytes() const {
    index_t bytes = 0;
    for (const Send& send : sends_) bytes += send.room;
    return bytes;
  }

 private:
  Inbox<C> inbox_;
  ChunkPackets out_;            // for each rank, in the context's work memory
  std::vector<std::byte*> in_;  // from each rank, in the context's work memory
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::optional<Channel::Ticket> under_way_;
};

}  // namespace terse::detail
