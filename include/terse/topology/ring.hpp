// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "terse/topology/concept.hpp"

namespace terse {

/// Partial sums travel around the ring and are compressed anew in each hop: in hop h rank r takes chunk r -
/// h, adds its own message and error to what came in, compresses, passes on. Each rank compresses each chunk
/// once, so one error of n elements serves all hops. After W - 1 hops rank r owns chunk r + 1, whose packet
/// then goes around the ring once more, unchanged. The mean is the decoded sum times 1 / W; sums run in the order of
/// travel, in full-precision rounds, too.
///
/// Sends per rank: 2 (W - 1) packets of a chunk, all to its successor, in 2 (W - 1) phases. Messages are evaluated in each
/// hop, so that what they read must stay until the round has ended.
struct Ring {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;
  static constexpr bool compresses_partial_sums = true;
  static constexpr bool evaluates_late = true;

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
      if (home.size == 1) return true;
      if (!settled(*under_way_, block)) return false;
      if (hop_ >= home.size) {
        const int c = behind(home, hop_ - home.size);
        home.accept(spread_.packet(c), spread_.portion(c), Phase::spread, c, owner(home, c));
        if (++hop_ == 2 * home.size - 1) return true;
        forward(home, c, length_of(home, c));
        return false;
      }
      const int c = behind(home, hop_);
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
        deliver(home, spread_.portion(c), inbox_, 1.0F / static_cast<float>(home.size), consumer);
      }
    }

    /// Squared norm of the dense part of the mean, the same on all ranks; packets hold sums.
    double notes(E executor) {
      const double size = spread_.size();
      return spread_.notes(executor) / (size * size);
    }

    template <class Visit>
    void walk(Visit&&) {}

   private:
    using Bytes = buffer<std::byte, typename E::memory>;

    /// `steps` chunks behind this rank's own number.
    static int behind(const Home& home, int steps) { return (home.rank - steps + home.size) % home.size; }
    static int before(const Home& home) { return behind(home, 1); }
    static int after(const Home& home) { return (home.rank + 1) % home.size; }
    static int owner(const Home& home, int c) { return (c + home.size - 1) % home.size; }
    static const Portion& portion(const Home& home, int c) {
      return home.plan.chunks[static_cast<std::size_t>(c)];
    }

    /// Compresses this hop's chunk and posts what follows.
    template <class In, class M>
    void hop(Home& home, In&& inbox, const M& message) {
      const int c = behind(home, hop_);
      const bool last = ++hop_ == home.size;
      const Message added{PlusArrived<decltype(message.compressed)>{message.compressed},
                          PlusArrived<decltype(message.dense)>{message.dense}};
      std::byte* packet = last ? spread_.packet(c) : out_.data();
      // What varies in size is counted on the host.
      if constexpr (Traits<C>::variable) await_messages(home.channel);
      home.codec.measure(portion(home, c), home.mask, inbox, added);
      const index_t bytes =
          home.codec.encode(portion(home, c), home.mask, inbox, added, home.first, false, packet);
      home.note(home.codec);
      home.stamp(packet, bytes, last ? Phase::spread : Phase::reduce, c);
      if (last) {
        if (home.size > 1) forward(home, c, bytes);
        return;
      }
      const Portion& next = portion(home, behind(home, hop_));
      pass(home, {after(home), packet, bytes, portion(home, c).bytes},
           {before(home), in_.data(), next.bytes, next.variable}, Phase::reduce);
    }
    /// Passes a whole sum on and takes the next one.
    void forward(Home& home, int c, index_t bytes) {
      const int next = (c + home.size - 1) % home.size;
      pass(home, {after(home), spread_.packet(c), bytes, spread_.portion(c).bytes},
           {before(home), spread_.packet(next), spread_.portion(next).bytes, spread_.portion(next).variable},
           Phase::spread);
    }
    void pass(Home& home, const Send& send, const Receive& receive, Phase phase) {
      send_ = send;
      receive_ = receive;
      under_way_.emplace(home.channel.exchange({&send_, 1}, {&receive_, 1}, phase));
    }
    /// Bytes of a packet that has come in. A device looks at headers later, so that this one may say anything.
    index_t length_of(Home& home, int c) {
      const index_t most = spread_.portion(c).bytes;
      if constexpr (Traits<C>::variable) {
        PacketHeader header;
        await_messages(home.channel);
        fetch(home.executor, view<const std::byte, typename E::memory>(spread_.packet(c), sizeof header),
              view<std::byte>(reinterpret_cast<std::byte*>(&header), sizeof header));
        return std::clamp(static_cast<index_t>(header.length), spread_.portion(c).section_at, most);
      } else {
        return most;
      }
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
