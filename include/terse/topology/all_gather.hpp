// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/topology/by_size.hpp"

namespace terse {

namespace detail {

/// A round in which every rank sends its whole packet to every other rank, without a rule for merging the packets.
template <Compressor C, ErrorFeedback F, Executor E>
class GatherRound {
  using Context = RoundContext<C, F, E>;

 public:
  TERSE_COLD explicit GatherRound(const Context& context)
      : spread_(std::vector<const Portion*>(static_cast<std::size_t>(context.size), &context.plan.whole),
                context.channel, context.rank, context.size, 0),
        inbox_(context.size) {}

  template <class M>
  void start(Context& context, const M& message) {
    post(context, context.encode_whole(message, packet(context.rank)));
  }
  template <class M>
  bool advance(Context& context, const M&, bool block) {
    if (!settled(*under_way_, block)) return false;
    spread_.accept(context);
    return true;
  }
  index_t most_bytes(const Context&) const { return spread_.most_bytes(); }

  std::byte* packet(int rank) { return spread_.packet(rank); }
  /// Returns an inbox with the packets of ranks first ... last - 1, each with weight(rank).
  template <class Weight>
  Inbox<C>& packets(Context& context, int first, int last, Weight weight) {
    inbox_.clear();
    for (int peer = first; peer < last; ++peer)
      context.add(inbox_, context.plan.whole, packet(peer), Phase::spread, peer, weight(peer));
    return inbox_;
  }

 protected:
  void post(Context& context, index_t bytes) {
    context.stamp(packet(context.rank), bytes, Phase::spread, context.rank);
    under_way_.emplace(spread_.post(context.channel, bytes));
  }

 private:
  Spread<E> spread_;
  Inbox<C> inbox_;
  std::optional<Channel::Ticket> under_way_;
};

}  // namespace detail

/// All-gather of whole packets: every rank sends its packet to every other rank, and decodes all W packets in rank order. Messages
/// are compressed once, so there is no second error. Sends per rank: W - 1 packets of the whole range, one message to each peer: W
/// / 2 times the bytes of two-stage topologies, in one phase instead of two. Full-precision packets, which would be 4 n bytes to
/// each peer, go by BySize. Gathered has other merges than the mean.
struct AllGather {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  using ForDense = BySize<>;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round : public detail::GatherRound<C, F, E> {
   public:
    using detail::GatherRound<C, F, E>::GatherRound;

    template <class Consumer>
    void consume(RoundContext<C, F, E>& context, const Consumer& consumer) {
      deliver(context, context.plan.whole, this->packets(context, 0, context.size, [](int) { return 1.0F; }),
              1.0F / static_cast<float>(context.size), consumer);
    }
  };
};

}  // namespace terse
