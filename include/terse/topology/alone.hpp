// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/topology/round.hpp"

namespace terse {

/// No messages: every rank's mean is its own message, compressed and decoded once. It is for one rank, and for runs
/// whose ranks train separately; otherwise ranks that use it diverge from each other.
struct Alone {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    explicit Round(const Context& context)
        : spread_({&context.plan.whole}, context.channel, 0, 1, 0), inbox_(1) {}

    template <class M>
    void start(Context& context, const M& message) {
      context.encode_whole(message, spread_.packet(0));
    }

    template <class M>
    bool advance(Context&, const M&, bool) {
      return true;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      inbox_.add(context.codec.compressor(), context.plan.whole, spread_.packet(0), context.first.shared);
      deliver(context, context.plan.whole, inbox_, 1, consumer);
    }

    index_t most_bytes(const Context&) const { return 0; }
    double notes(E executor) { return spread_.notes(executor); }

   private:
    Spread<E> spread_;
    Inbox<C> inbox_;
  };
};

}  // namespace terse
