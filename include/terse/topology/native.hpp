// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "terse/topology/round.hpp"

namespace terse {

/// The transport's own reduce-scatter and all-gather, for full-precision packets: those of MPI or NCCL, which know the machine.
/// They choose the order of the sum. It gives equal bits on all ranks, but NOT the bits of other topologies, of other
/// transports, or, if the transport doesn't promise that, of the next run. It can be the Inner of a Hierarchical, and it can be
/// used in dense methods: `Adam<Native>`.
///
/// Sends as many bytes per rank as the transport's collectives; at least 2 (W - 1) / W of n floats. Blocks are padded to the largest.
/// The values that other topologies check in packet headers (step, hyper-parameters, values that are not finite) are checked when the
/// means arrive.
struct Native {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  static constexpr bool full_precision_only = true;

  template <class T>
  static constexpr bool check_on() {
    static_assert(ReducesNatively<T>,
                  "terse: Native needs a transport with collectives of its own (Mpi, Nccl), see "
                  "ReducesNatively");
    return true;
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    static_assert(C::lossless,
                  "terse: a transport's own collectives add floats, so Native carries full-precision "
                  "messages only: write Hierarchical<Native, ScatterGather> to compress between nodes");
    using Context = RoundContext<C, F, E>;

   public:
    explicit Round(const Context& context)
        : block_(largest(context)),
          blocks_(block_ * context.size),
          own_(block_),
          plan_(&context.plan),
          rank_(context.rank),
          names_(context.names),
          inbox_(1) {}

    template <class M>
    void start(Context& context, const M& message) {
      for (int c = 0; c < context.size; ++c)
        context.codec.encode(portion(c), context.mask, EmptyInbox{}, message, context.first, true, packet(c));
      context.note(context.codec);
      spreading_ = false;
      under_way_.emplace(context.channel.reduce_scatter(reinterpret_cast<const float*>(blocks_.data()),
                                                        reinterpret_cast<float*>(own_.data()),
                                                        block_ / static_cast<index_t>(sizeof(float))));
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
      for (int c = 0; c < context.size; ++c) {
        inbox_.clear();
        context.add(inbox_, portion(c), packet(c), Phase::spread, c);
        deliver(context, portion(c), inbox_, 1, consumer);
      }
    }

    // The halves of the round, see Hierarchical.

    static int own_chunk(int rank, int) { return rank; }
    template <class M>
    bool reduced(Context& context, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      inbox_.clear();
      inbox_.watch(nullptr);  // a sum may be larger than the values allowed in a packet
      inbox_.add(context.codec.compressor(), portion(rank_), own_.data(), context.first.shared);
      return true;
    }
    template <class Consumer>
    void take(Context& context, const Consumer& consumer) {
      deliver(context, portion(rank_), inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }
    template <class M>
    void spread(Context& context, const M& message) {
      spread(context, message, EmptyInbox{});
    }
    bool gathered(Context& context, bool block) {
      if (!settled(*under_way_, block)) return false;
      for (int c = 0; c < context.size; ++c)
        if (c != rank_) context.accept(packet(c), portion(c), Phase::spread, c, c);
      return true;
    }

    index_t most_spread_bytes(const Context& context) const { return (context.size - 1) * block_; }
    index_t most_bytes(const Context& context) const { return 2 * most_spread_bytes(context); }
    /// Returns the squared norm of the dense part of the mean, equal on all ranks. Waits for the device.
    double notes(E executor) {
      double sum = 0;
      for (std::size_t c = 0; c < plan_->chunks.size(); ++c)
        sum += note_of(executor, packet(static_cast<int>(c)), plan_->chunks[c], names_(static_cast<int>(c)),
                       -1, names_(rank_));
      return sum;
    }

   private:
    static index_t largest(const Context& context) {
      index_t bytes = 0;
      for (const Portion& chunk : context.plan.chunks) bytes = std::max(bytes, chunk.bytes);
      return aligned(bytes);
    }
    const Portion& portion(int c) const { return plan_->chunks[static_cast<std::size_t>(c)]; }
    std::byte* packet(int c) { return blocks_.data() + c * block_; }
    template <class M, class In>
    void spread(Context& context, const M& message, In&& inbox) {
      context.codec.encode(portion(rank_), context.mask, inbox, message, context.first, true, packet(rank_));
      context.note(context.codec);
      context.stamp(packet(rank_), portion(rank_).bytes, Phase::spread, rank_);
      spreading_ = true;
      under_way_.emplace(context.channel.all_gather_in_place(blocks_.data(), block_));
    }

    index_t block_;  // number of bytes, equal for all ranks
    buffer<std::byte, typename E::memory> blocks_,
        own_;  // packets of all chunks; the sum of this rank's chunk
    const Plan* plan_;
    int rank_;
    detail::RankNames names_;
    Inbox<C> inbox_;
    std::optional<Channel::Ticket> under_way_;
    bool spreading_ = false;
  };
};

}  // namespace terse
