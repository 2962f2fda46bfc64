// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "terse/topology/round.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace archetype {

/// AllGather: every packet to every rank.
struct Topology {
#if !defined(OMIT_TOPOLOGY_EXACT)
  static constexpr bool exact = true;
#endif
#if !defined(OMIT_TOPOLOGY_RECOMPRESSES)
  static constexpr bool recompresses = false;
#endif
#if !defined(OMIT_TOPOLOGY_FOR_DENSE)
  using ForDense = terse::ScatterGather;
#endif

#if defined(WRONG_TOPOLOGY_SETTINGS)
  int parameter = 0;
#endif

#if !defined(OMIT_TOPOLOGY_ROUND)
  template <terse::Compressor C, terse::ErrorFeedback F, terse::Executor E>
  class Round {
    using Context = terse::RoundContext<C, F, E>;

   public:
    explicit Round(const Context& context)
        : spread_(std::vector(static_cast<std::size_t>(context.size), &context.plan.whole), context.channel,
                  context.rank, context.size, 0),
          inbox_(context.size) {}

#if !defined(OMIT_TOPOLOGY_START)
    template <class M>
    void start(Context& context, const M& message) {
      const terse::index_t bytes = context.encode_whole(message, spread_.packet(context.rank));
      context.stamp(spread_.packet(context.rank), bytes, terse::Phase::spread, context.rank);
      under_way_.emplace(spread_.post(context.channel, bytes));
    }
#endif
#if !defined(OMIT_TOPOLOGY_ADVANCE)
    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!terse::settled(*under_way_, block)) return false;
      spread_.accept(context);
      return true;
    }
#endif
#if !defined(OMIT_TOPOLOGY_CONSUME)
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      for (int rank = 0; rank < context.size; ++rank)
        context.add(inbox_, context.plan.whole, spread_.packet(rank), terse::Phase::spread, rank);
      terse::deliver(context, context.plan.whole, inbox_, 1.0F / static_cast<float>(context.size), consumer);
    }
#endif
#if !defined(OMIT_TOPOLOGY_MOST_BYTES)
    terse::index_t most_bytes(const Context&) const { return spread_.most_bytes(); }
#endif

   private:
    terse::Spread<E> spread_;
    terse::Inbox<C> inbox_;
    std::optional<terse::Channel::Ticket> under_way_;
  };
#endif
};

}  // namespace archetype
