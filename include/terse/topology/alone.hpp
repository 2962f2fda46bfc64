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
    using Home = Station<C, F, T, E>;

   public:
    explicit Round(const Home& home) : spread_({&home.plan.whole}, 0, 1, 0), inbox_(1) {}

    template <class M>
    void start(Home& home, const M& message) {
      home.codec.measure(home.plan.whole, home.mask, EmptyInbox{}, message);
      home.codec.encode(home.plan.whole, home.mask, EmptyInbox{}, message, home.first, true,
                        spread_.packet(0));
      home.note(home.codec);
    }

    template <class M>
    bool advance(Home&, const M&, bool) {
      return true;
    }

    template <class Consumer>
    void consume(Home& home, const Consumer& consumer) {
      inbox_.clear();
      inbox_.add(home.codec.compressor(), home.plan.whole, spread_.packet(0), home.first.shared);
      deliver(home, home.plan.whole, inbox_, 1, consumer);
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
