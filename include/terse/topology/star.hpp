// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/topology/second_stage.hpp"

namespace terse {

/// All ranks send to one rank, the center. It takes the mean in rank order, compresses it again with a separate error
/// and sends it to all: a parameter server that is one of the ranks. It is for few ranks, and for machines of which one
/// has a faster link than the others.
///
/// Sends per rank: one packet of the whole range to the center, which sends one to each of W - 1 peers; two phases. The
/// center decodes W packets. State: the second error, n floats on the center.
struct Star {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;

  int center = 0;  ///< the rank that takes the mean

  template <class Visit>
  void settings(Visit&& visit) const {
    visit("center", static_cast<double>(center));
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD Round(const Context& context, const Star& topology)
        : center_(topology.center),
          rank_(context.rank),
          names_(context.names),
          whole_(context.plan.whole),
          out_(context.plan.whole.bytes, uninitialized),
          mean_(context.plan.whole.bytes, uninitialized),
          inbox_(context.size) {
      if (center_ < 0 || center_ >= context.size)
        throw usage_error("Star's center is rank " + std::to_string(center_) + ", of " +
                              std::to_string(context.size) + " ranks: it must be one of 0 to " +
                              std::to_string(context.size - 1),
                          context.names(context.rank));
      const Portion& whole = context.plan.whole;
      if (context.rank != center_) {
        up_.push_back({center_, out_.data(), whole.bytes, whole.bytes});
        from_center_.push_back({center_, mean_.data(), whole.bytes, whole.variable});
        return;
      }
      second_.emplace(context, whole);
      for (int peer = 0; peer < context.size; ++peer) {
        in_.emplace_back(peer == context.rank ? 0 : whole.bytes, uninitialized);
        if (peer == context.rank) continue;
        to_center_.push_back({peer, in_.back().data(), whole.bytes, whole.variable});
        down_.push_back({peer, mean_.data(), whole.bytes, whole.bytes});
      }
    }

    template <class M>
    void start(Context& context, const M& message) {
      const index_t bytes = context.encode_whole(message, out_.data());
      context.stamp(out_.data(), bytes, Phase::reduce, 0);
      for (Send& send : up_) send.bytes = bytes;
      spreading_ = false;
      under_way_.emplace(context.channel.exchange(up_, to_center_, Phase::reduce));
    }

    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!settled(*under_way_, block)) return false;
      if (spreading_) {
        if (context.rank != center_)
          context.accept(mean_.data(), context.plan.whole, Phase::spread, 0, center_);
        return true;
      }
      if (context.rank == center_) serve(context);
      spreading_ = true;
      under_way_.emplace(context.channel.exchange(down_, from_center_, Phase::spread));
      return false;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      inbox_.clear();
      context.add(inbox_, context.plan.whole, mean_.data(), Phase::spread, center_);
      deliver(context, context.plan.whole, inbox_, 1, consumer);
    }

    index_t most_bytes(const Context&) const {
      return whole_.bytes * static_cast<index_t>(up_.size() + down_.size());
    }

    /// Returns the squared norm of the dense part of the mean, equal on all ranks. Waits for the device.
    double notes(E executor) {
      return note_of(executor, mean_.data(), whole_, names_(center_), -1, names_(rank_));
    }

    template <class Visit>
    void walk(Visit&& visit) {
      if (second_) second_->walk(visit);
    }

   private:
    /// Computes, compresses and stamps the mean on the center.
    void serve(Context& context) {
      const Portion& whole = context.plan.whole;
      second_->start(context);
      inbox_.clear();
      context.together([&] {
        for (int peer = 0; peer < context.size; ++peer) {
          const std::byte* packet =
              peer == context.rank ? out_.data() : in_[static_cast<std::size_t>(peer)].data();
          if (peer != context.rank) context.accept(packet, whole, Phase::reduce, 0, peer);
          context.add(inbox_, whole, packet, Phase::reduce, peer);
        }
      });
      const MeanOf mean{1.0F / static_cast<float>(context.size)};
      const index_t bytes = second_->encode(context, whole, inbox_, Message{mean, mean}, mean_.data());
      context.stamp(mean_.data(), bytes, Phase::spread, 0);
      for (Send& send : down_) send.bytes = bytes;
    }

    using Bytes = buffer<std::byte, typename E::memory>;

    int center_, rank_;
    typename Context::RankNames names_;
    Portion whole_;
    Bytes out_, mean_;
    std::vector<Bytes> in_;
    std::optional<SecondStage<C, F, E>> second_;
    Inbox<C> inbox_;
    std::vector<Send> up_, down_;
    std::vector<Receive> to_center_, from_center_;
    std::optional<Channel::Ticket> under_way_;
    bool spreading_ = false;
  };
};

}  // namespace terse
