// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/concept.hpp"

namespace terse {

/// Partial sums travel around the ring and are compressed anew in each hop: in hop h rank r takes chunk r -
/// h, adds its own message and error to what came in, compresses, passes on. Each rank compresses each chunk
/// once, so one error of n elements serves all hops. After W - 1 hops rank r owns chunk r + 1, whose packet
/// then reaches everybody unchanged. The mean is the decoded sum times 1 / W; sums run in the order of
/// travel.
///
/// Sends per rank: W - 1 packets to its successor, then its last packet to W - 1 peers; 2 (W - 1) messages in
/// W phases.
struct Ring {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round {
    using Home = Station<C, F, T, E>;

   public:
    explicit Round(const Home& home)
        : spread_(portions_of(home.plan), home.rank, home.size, home.size - 1), inbox_(1) {
      index_t largest = 0;
      for (const Portion& chunk : home.plan.chunks) largest = std::max(largest, chunk.bytes);
      out_ = Bytes(largest);
      in_ = Bytes(largest);
    }

    template <class M>
    void start(Home& home, const M& message) {
      hop_ = 0;
      hop(home, EmptyInbox{}, message);
    }

    template <class M>
    bool advance(Home& home, const M& message, bool block) {
      if (!detail::settle(*under_way_, block)) return false;
      if (hop_ == home.size) {
        spread_.accept(home);
        return true;
      }
      const int c = chunk(home);
      home.accept(in_.data(), portion(home, c), Phase::reduce, c, before(home));
      inbox_.clear();
      inbox_.add(home.codec.compressor(), portion(home, c), in_.data(), home.first.shared);
      hop(home, inbox_, message);
      return false;
    }

    template <class Consumer>
    void consume(Home& home, const Consumer& consumer) {
      for (int c = 0; c < home.size; ++c) {
        inbox_.clear();
        inbox_.add(home.codec.compressor(), spread_.portion(c), spread_.packet(c), home.first.shared);
        detail::deliver(home, spread_.portion(c), inbox_, 1.0F / static_cast<float>(home.size), consumer);
      }
    }

    template <class Visit>
    void walk(Visit&&) {}

   private:
    using Bytes = buffer<std::byte, typename E::memory>;

    int chunk(const Home& home) const { return (home.rank - hop_ + home.size) % home.size; }
    static int before(const Home& home) { return (home.rank + home.size - 1) % home.size; }
    static const Portion& portion(const Home& home, int c) {
      return home.plan.chunks[static_cast<std::size_t>(c)];
    }

    /// Compresses this hop's chunk and posts what follows.
    template <class In, class M>
    void hop(Home& home, In&& inbox, const M& message) {
      const int c = chunk(home);
      const bool last = ++hop_ == home.size;
      const Message added{detail::PlusArrived<decltype(message.compressed)>{message.compressed},
                          detail::PlusArrived<decltype(message.dense)>{message.dense}};
      std::byte* packet = last ? spread_.packet(c) : out_.data();
      // What varies in size is counted on the host.
      if constexpr (Traits<C>::variable) await_messages(home.channel);
      home.codec.measure(portion(home, c), home.mask, inbox, added);
      const index_t bytes =
          home.codec.encode(portion(home, c), home.mask, inbox, added, home.first, false, packet);
      home.note(home.codec);
      home.stamp(packet, bytes, last ? Phase::spread : Phase::reduce, c);
      if (last) {
        under_way_.emplace(spread_.post(home.channel, bytes));
        return;
      }
      const Portion& next = portion(home, chunk(home));
      send_ = {(home.rank + 1) % home.size, packet, bytes, portion(home, c).bytes};
      receive_ = {before(home), in_.data(), next.bytes, next.variable};
      under_way_.emplace(home.channel.exchange({&send_, 1}, {&receive_, 1}, Phase::reduce));
    }

    Spread<T, E> spread_;
    Inbox<C> inbox_;
    Bytes out_, in_;
    Send send_;
    Receive receive_;
    std::optional<decltype(std::declval<T&>().exchange({}, {}, Phase::reduce))> under_way_;
    int hop_ = 0;
  };
};

}  // namespace terse
