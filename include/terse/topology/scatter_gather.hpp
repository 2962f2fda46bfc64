// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/concept.hpp"

namespace terse {

/// All-to-all of chunks, mean and second compression by each chunk's owner with an error of its own,
/// all-gather: 1-bit Adam's own way, and for lossless packets the exact mean, summed in rank order.
///
/// Sends per rank: its packets of the other W - 1 chunks, then its own chunk's packet to W - 1 peers; 2 (W -
/// 1) messages. Two passes over n / W on the owner. State: the second error, n / W floats. Source: Tang et
/// al., "1-bit Adam", ICML 2021, section 4 and Figure 3.
struct ScatterGather {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  template <Compressor C, ErrorFeedback F, Transport T, Executor E>
  class Round {
    using Home = Station<C, F, T, E>;

   public:
    explicit Round(const Home& home)
        : second_(home.executor, home.codec.compressor(), home.feedback, own(home)),
          spread_(portions_of(home.plan), home.rank, home.size, 0),
          inbox_(home.size) {
      bytes_.resize(static_cast<std::size_t>(home.size));
      const index_t arriving = own(home).bytes;
      for (int peer = 0; peer < home.size; ++peer) {
        out_.emplace_back(home.plan.chunks[static_cast<std::size_t>(peer)].bytes);
        in_.emplace_back(peer == home.rank ? 0 : arriving);
      }
      for (int peer = 0; peer < home.size; ++peer) {
        if (peer == home.rank) continue;
        const auto p = static_cast<std::size_t>(peer);
        sends_.push_back({peer, out_[p].data(), out_[p].size(), out_[p].size()});
        receives_.push_back({peer, in_[p].data(), arriving, own(home).variable});
      }
    }

    template <class M>
    void start(Home& home, const M& message) {
      home.codec.measure(home.plan.whole, home.mask, EmptyInbox{}, message);
      second_.set_compressor(home.codec.compressor());
      second_.start(home.rate);
      for (std::size_t c = 0; c < out_.size(); ++c)
        bytes_[c] = home.codec.encode(home.plan.chunks[c], home.mask, EmptyInbox{}, message, home.first, true,
                                      out_[c].data());
      home.note(home.codec);
      for (int c = 0; c < home.size; ++c)
        home.stamp(out_[static_cast<std::size_t>(c)].data(), bytes_[static_cast<std::size_t>(c)],
                   Phase::reduce, c);
      for (Send& send : sends_) send.bytes = bytes_[static_cast<std::size_t>(send.peer)];
      spreading_ = false;
      under_way_.emplace(home.channel.exchange(sends_, receives_, Phase::reduce));
    }

    template <class M>
    bool advance(Home& home, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      if (spreading_) {
        spread_.accept(home);
        return true;
      }
      serve(home);
      spreading_ = true;
      under_way_.emplace(spread_.post(home.channel, spread_bytes_));
      return false;
    }

    template <class Consumer>
    void consume(Home& home, const Consumer& consumer) {
      for (int c = 0; c < home.size; ++c) {
        inbox_.clear();
        inbox_.add(home.codec.compressor(), spread_.portion(c), spread_.packet(c), home.first.shared);
        deliver(home, spread_.portion(c), inbox_, 1, consumer);
      }
    }

    /// Squared norm of the dense part of the mean, the same on all ranks.
    double notes(E executor) { return spread_.notes(executor); }

    template <class Visit>
    void walk(Visit&& visit) {
      second_.walk([&](const std::string& name, auto&&... rest) {
        visit("second_" + name, std::forward<decltype(rest)>(rest)...);
      });
    }

   private:
    static const Portion& own(const Home& home) {
      return home.plan.chunks[static_cast<std::size_t>(home.rank)];
    }

    /// The owner's part: mean of the chunk over all ranks, compressed once more.
    void serve(Home& home) {
      inbox_.clear();
      for (int peer = 0; peer < home.size; ++peer) {
        const std::byte* packet = (peer == home.rank ? out_ : in_)[static_cast<std::size_t>(peer)].data();
        if (peer != home.rank) home.accept(packet, own(home), Phase::reduce, home.rank, peer);
        inbox_.add(home.codec.compressor(), own(home), packet, home.first.shared);
      }
      const MeanOf mean{1.0F / static_cast<float>(home.size)};
      const Message message{mean, mean};
      // What varies in size is counted on the host.
      if constexpr (Traits<C>::variable) await_messages(home.channel);
      second_.measure(own(home), home.mask, inbox_, message);
      spread_bytes_ = second_.encode(own(home), home.mask, inbox_, message, home.second, false,
                                     spread_.packet(home.rank));
      home.note(second_);
      home.stamp(spread_.packet(home.rank), spread_bytes_, Phase::spread, home.rank);
    }

    Codec<C, F, E> second_;
    Spread<T, E> spread_;
    Inbox<C> inbox_;
    std::vector<buffer<std::byte, typename E::memory>> out_, in_;
    std::vector<index_t> bytes_;  // of the packets in out_
    index_t spread_bytes_ = 0;
    std::vector<Send> sends_;
    std::vector<Receive> receives_;
    std::optional<decltype(std::declval<T&>().exchange({}, {}, Phase::reduce))> under_way_;
    bool spreading_ = false;
  };
};

}  // namespace terse
