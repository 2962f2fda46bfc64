// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "terse/error_feedback/none.hpp"
#include "terse/topology/round.hpp"
#include "terse/transport/assembly.hpp"

namespace terse::detail {

/// Only the second half of a round: each rank's chunk, compressed by C without error feedback, is sent to all ranks.
template <Compressor C, Executor E>
class SpreadShare {
 public:
  /// `plan` has one chunk for each rank of the channel.
  TERSE_COLD SpreadShare(E executor, Channel& channel, Envelope<E>& envelope, const C& compressor,
                         const Layout& layout, const Plan& plan, RankNames names)
      : held_(NoErrorFeedback{}, own(plan, channel).compressed.begin_offset(),
              own(plan, channel).compressed.end_offset()),
        context_(executor, channel, envelope, compressor, NoErrorFeedback{}, layout, plan, names, &held_),
        spread_(context_),
        inbox_(context_.size) {}

  template <class... Step>
  void open(const Step&... step) {
    context_.open(step...);
  }
  template <class M>
  void spread(const M& message) {
    const Portion& mine = own(context_.plan, context_.channel);
    // The size of variable packets is known only on the host.
    if constexpr (Traits<C>::variable) await_messages(context_.channel);
    context_.codec.measure(mine, context_.mask, EmptyInbox{}, message);
    std::byte* const packet = spread_.packet(context_.rank);
    const index_t bytes =
        context_.codec.encode(mine, context_.mask, EmptyInbox{}, message, context_.second, false, packet);
    context_.note(context_.codec);
    context_.stamp(packet, bytes, Phase::spread, context_.rank);
    under_way_.emplace(spread_.post(context_.channel, bytes));
  }
  bool gathered(bool block) {
    if (!settled(*under_way_, block)) return false;
    spread_.accept(context_);
    return true;
  }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    spread_.deliver(context_, inbox_, 1, consumer);
  }
  index_t most_bytes() const { return spread_.most_bytes(); }

 private:
  static const Portion& own(const Plan& plan, const Channel& channel) {
    return plan.chunks[static_cast<std::size_t>(channel.rank())];
  }

  typename NoErrorFeedback::template State<E> held_;  // for this rank's chunk
  RoundContext<C, NoErrorFeedback, E> context_;
  Spread<E> spread_;
  Inbox<C> inbox_;
  std::optional<Channel::Ticket> under_way_;
};

}  // namespace terse::detail
