// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/by_size.hpp"

namespace terse {

/// Every rank sends its whole packet to every other; each decodes all W, in rank order. Compresses once, so
/// there is no second error. Sends per rank: W - 1 packets of the whole range, one message to each peer: W /
/// 2 times the bytes of the two-stage ways, in one phase instead of two. Full-precision packets, for which that would be 4 n
/// bytes to each peer, go by BySize.
struct AllGather {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  using ForDense = BySize<>;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round {
    using Context = RoundContext<C, F, T, E>;

   public:
    TERSE_COLD explicit Round(const Context& context)
        : spread_(std::vector<const Portion*>(static_cast<std::size_t>(context.size), &context.plan.whole),
                  context.rank, context.size, 0),
          inbox_(context.size) {}

    template <class M>
    void start(Context& context, const M& message) {
      const index_t bytes = context.encode_whole(message, spread_.packet(context.rank));
      context.stamp(spread_.packet(context.rank), bytes, Phase::spread, context.rank);
      under_way_.emplace(spread_.post(context.channel, bytes));
    }

    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      spread_.accept(context);
      return true;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      for (int peer = 0; peer < context.size; ++peer)
        context.add(inbox_, context.plan.whole, spread_.packet(peer), Phase::spread, peer);
      deliver(context, context.plan.whole, inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }

    index_t most_bytes(const Context&) const { return spread_.most_bytes(); }

   private:
    Spread<T, E> spread_;
    Inbox<C> inbox_;
    std::optional<TicketOf<T>> under_way_;
  };
};

}  // namespace terse
