// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/second_stage.hpp"
#include "terse/topology/to_owners.hpp"

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
        : second_(context, context.own()), spread_(context), to_owners_(context) {}
    /// Returns the bytes of the outgoing packets, and of the incoming packets of this rank's chunk.
    static index_t work_bytes(const Context& context) {
      return detail::ToOwners<C, F, E>::work_bytes(context);
    }

    template <class M>
    void start(Context& context, const M& message) {
      second_.start(context);
      to_owners_.start(context, message);
      spreading_ = false;
    }

    template <class M>
    bool advance(Context& context, const M& message, bool block) {
      if (spreading_) return gathered(context, block);
      if (!reduced(context, message, block)) return false;
      const MeanOf mean{1.0F / static_cast<float>(context.size)};
      spread(context, Message{mean, mean}, to_owners_.inbox());
      return false;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      spread_.deliver(context, to_owners_.inbox(), 1, consumer);
    }

    // The halves of the round, see Hierarchical.

    static int own_chunk(int rank, int) { return rank; }
    template <class M>
    bool reduced(Context& context, const M&, bool block) {
      return to_owners_.arrived(context, block);
    }
    template <class Consumer>
    void take(Context& context, const Consumer& consumer) {
      to_owners_.take(context, consumer);
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
      return most_spread_bytes(context) + to_owners_.most_bytes();
    }

    /// Returns the squared norm of the dense part of the mean, the same on all ranks.
    double notes(E executor) { return spread_.notes(executor); }

    template <class Visit>
    void walk(Visit&& visit) {
      second_.walk(visit);
    }

   private:
    /// Compresses the owner's chunk of `message` again and sends it to all ranks.
    template <class M, class In>
    void spread(Context& context, const M& message, In&& inbox) {
      std::byte* const packet = spread_.packet(context.rank);
      const index_t bytes = second_.encode(context, context.own(), inbox, message, packet);
      context.stamp(packet, bytes, Phase::spread, context.rank);
      spreading_ = true;
      under_way_.emplace(spread_.post(context.channel, bytes));
    }

    SecondStage<C, F, E> second_;
    Spread<E> spread_;
    detail::ToOwners<C, F, E> to_owners_;
    std::optional<Channel::Ticket> under_way_;
    bool spreading_ = false;
  };
};

}  // namespace terse
