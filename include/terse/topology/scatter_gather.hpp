// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "terse/topology/second_stage.hpp"

namespace terse {

/// All-to-all of chunks; mean and second compression by each chunk's owner, with a separate error; all-gather. It is
/// 1-bit Adam's topology, and for lossless packets the exact mean, summed in rank order.
///
/// Sends per rank: its packets of the other W - 1 chunks, then its own chunk's packet to W - 1 peers, which is 2 (W - 1)
/// messages. Passes over n / W on the owner: one if the compressor codes while it measures (signs, PerBlock), otherwise
/// two. State: the second error, n / W floats. Source: Tang et al., "1-bit Adam", ICML 2021, section 4 and Figure 3.
struct ScatterGather {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD explicit Round(const Context& context)
        : second_(context, own(context)),
          spread_(context),
          inbox_(context.size),
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
      const Portion& mine = own(context);
      for (int peer = 0; peer < context.size; ++peer) {
        if (peer == context.rank) continue;
        std::byte* const packet = in_[static_cast<std::size_t>(peer)] =
            std::exchange(free, free + context.channel.packet_room(mine.bytes));
        receives_.push_back({peer, packet, mine.bytes, mine.variable});
      }
    }
    /// Returns the bytes of the outgoing packets, and of the incoming packets of this rank's chunk.
    static index_t work_bytes(const Context& context) {
      index_t bytes = (context.size - 1) * context.channel.packet_room(own(context).bytes);
      for (const Portion& chunk : context.plan.chunks) bytes += context.channel.packet_room(chunk.bytes);
      return bytes;
    }

    template <class M>
    void start(Context& context, const M& message) {
      context.codec.measure(context.plan.whole, context.mask, EmptyInbox{}, message);
      second_.start(context);
      context.codec.encode_together(context.plan.chunks, context.mask, message, context.first, out_);
      context.note(context.codec);
      context.together([&] {
        for (int c = 0; c < context.size; ++c)
          context.stamp(out_.at[static_cast<std::size_t>(c)], out_.bytes[static_cast<std::size_t>(c)],
                        Phase::reduce, c);
      });
      for (Send& send : sends_) send.bytes = out_.bytes[static_cast<std::size_t>(send.peer)];
      spreading_ = false;
      under_way_.emplace(context.channel.exchange(sends_, receives_, Phase::reduce));
    }

    template <class M>
    bool advance(Context& context, const M& message, bool block) {
      if (spreading_) return gathered(context, block);
      if (!reduced(context, message, block)) return false;
      const MeanOf mean{1.0F / static_cast<float>(context.size)};
      spread(context, Message{mean, mean}, inbox_);
      return false;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      spread_.deliver(context, inbox_, 1, consumer);
    }

    // The halves of the round, see Hierarchical.

    static int own_chunk(int rank, int) { return rank; }
    template <class M>
    bool reduced(Context& context, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      inbox_.clear();
      context.together([&] {
        for (int peer = 0; peer < context.size; ++peer) {
          const std::byte* packet = (peer == context.rank ? out_.at : in_)[static_cast<std::size_t>(peer)];
          if (peer != context.rank) context.accept(packet, own(context), Phase::reduce, context.rank, peer);
          context.add(inbox_, own(context), packet, Phase::reduce, peer);
        }
      });
      return true;
    }
    template <class Consumer>
    void take(Context& context, const Consumer& consumer) {
      inbox_.watch(context.damage());
      deliver(context, own(context), inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }
    template <class M>
    void spread(Context& context, const M& message) {
      spread(context, message, EmptyInbox{});
    }
    bool gathered(Context& context, bool block) {
      if (!settled(*under_way_, block)) return false;
      spread_.accept(context);
      return true;
    }

    index_t most_spread_bytes(const Context&) const { return spread_.most_bytes(); }
    index_t most_bytes(const Context& context) const {
      index_t bytes = most_spread_bytes(context);
      for (const Send& send : sends_) bytes += send.room;
      return bytes;
    }

    /// Returns the squared norm of the dense part of the mean, the same on all ranks.
    double notes(E executor) { return spread_.notes(executor); }

    template <class Visit>
    void walk(Visit&& visit) {
      second_.walk(visit);
    }

   private:
    static const Portion& own(const Context& context) {
      return context.plan.chunks[static_cast<std::size_t>(context.rank)];
    }

    /// Compresses the owner's chunk of `message` again and sends it to all ranks.
    template <class M, class In>
    void spread(Context& context, const M& message, In&& inbox) {
      std::byte* const packet = spread_.packet(context.rank);
      const index_t bytes = second_.encode(context, own(context), inbox, message, packet);
      context.stamp(packet, bytes, Phase::spread, context.rank);
      spreading_ = true;
      under_way_.emplace(spread_.post(context.channel, bytes));
    }

    SecondStage<C, F, E> second_;
    Spread<E> spread_;
    Inbox<C> inbox_;
    detail::ChunkPackets out_;    // for each rank, in the context's work memory
    std::vector<std::byte*> in_;  // from each rank, in the context's work memory
    std::vector<Send> sends_;
    std::vector<Receive> receives_;
    std::optional<Channel::Ticket> under_way_;
    bool spreading_ = false;
  };
};

}  // namespace terse
