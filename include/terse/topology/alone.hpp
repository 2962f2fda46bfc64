// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/topology/concept.hpp"

namespace terse {

/// No messages: every rank's mean is its own message, compressed and decoded once. For one rank, and for runs
/// that are meant to stay apart; ranks that use it diverge from each other.
struct Alone {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round {
    using Context = RoundContext<C, F, T, E>;

   public:
    explicit Round(const Context& context) : spread_({&context.plan.whole}, 0, 1, 0), inbox_(1) {}

    template <class M>
    void start(Context& context, const M& message) {
      context.codec.measure(context.plan.whole, context.mask, EmptyInbox{}, message);
      context.codec.encode(context.plan.whole, context.mask, EmptyInbox{}, message, context.first, true,
                           spread_.packet(0));
      context.note(context.codec);
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

    double notes(E executor) { return spread_.notes(executor); }

    template <class Visit>
    void walk(Visit&&) {}

   private:
    Spread<T, E> spread_;
    Inbox<C> inbox_;
  };
};

}  // namespace terse
