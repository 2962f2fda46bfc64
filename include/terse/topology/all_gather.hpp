// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/scatter_gather.hpp"

namespace terse {

/// Every rank sends its whole packet to every other; each decodes all W, in rank order. Compresses once, so
/// there is no second error. Sends per rank: W - 1 packets of the whole range, one message to each peer: W /
/// 2 times the bytes of the two-stage ways, in one phase instead of two. Full-precision packets, for which that would be 4 n
/// bytes to each peer, go by ScatterGather.
struct AllGather {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  using ForDense = ScatterGather;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round {
    using Home = Station<C, F, T, E>;

   public:
    explicit Round(const Home& home)
        : spread_(std::vector<const Portion*>(static_cast<std::size_t>(home.size), &home.plan.whole),
                  home.rank, home.size, 0),
          inbox_(home.size) {}

    template <class M>
    void start(Home& home, const M& message) {
      home.codec.measure(home.plan.whole, home.mask, EmptyInbox{}, message);
      const index_t bytes = home.codec.encode(home.plan.whole, home.mask, EmptyInbox{}, message, home.first,
                                              true, spread_.packet(home.rank));
      home.note(home.codec);
      home.stamp(spread_.packet(home.rank), bytes, Phase::spread, home.rank);
      under_way_.emplace(spread_.post(home.channel, bytes));
    }

    template <class M>
    bool advance(Home& home, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      spread_.accept(home);
      return true;
    }

    template <class Consumer>
    void consume(Home& home, const Consumer& consumer) {
      inbox_.clear();
      for (int peer = 0; peer < home.size; ++peer)
        inbox_.add(home.codec.compressor(), home.plan.whole, spread_.packet(peer), home.first.shared);
      deliver(home, home.plan.whole, inbox_, 1.0F / static_cast<float>(home.size), consumer);
    }

    template <class Visit>
    void walk(Visit&&) {}

   private:
    Spread<T, E> spread_;
    Inbox<C> inbox_;
    std::optional<decltype(std::declval<T&>().exchange({}, {}, Phase::spread))> under_way_;
  };
};

}  // namespace terse
