// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/none.hpp"
#include "terse/topology/owners.hpp"

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
        round_(context_) {}

  template <class... Step>
  void open(const Step&... step) {
    context_.open(step...);
  }
  template <class M>
  void spread(const M& message) {
    round_.start(context_, message);
  }
  bool gathered(bool block) { return round_.gathered(context_, block); }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    round_.consume(context_, consumer);
  }
  index_t most_bytes() const { return round_.most_bytes(context_); }

 private:
  static const Portion& own(const Plan& plan, const Channel& channel) {
    return plan.chunks[static_cast<std::size_t>(channel.rank())];
  }

  typename NoErrorFeedback::template State<E> held_;  // for this rank's chunk
  RoundContext<C, NoErrorFeedback, E> context_;
  typename SpreadByOwners<CutBy::kind>::template Round<C, NoErrorFeedback, E> round_;
};

}  // namespace terse::detail
