// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/late_mean.hpp"
#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// Local steps that overlap with the average of the last round. Every `period` steps of the inner recipe, alone on
/// its rank, Merge applies the mean that was started `period` steps ago, and the next one starts. The first round
/// applies the initial parameters. No rank waits for a mean before it is due, and then only if another rank is more
/// than a whole period late. Each step advances the round if messages have arrived.
///
///     OverlapLocalSgd<MomentumSgd<>>{.inner = {.learning_rate = 0.1F}, .period = 8, .merge = {.pullback = 0.6F}}
///
/// Saving completes the round in flight and keeps its mean. Only its own rank detects a gradient that is not finite;
/// the others throw peer_error when they wait for it.
///
/// State: the inner recipe's; anchor and velocity, or mean and snapshot, n floats each. Wire: one dense round per
/// period. Passes every `period` steps, in addition to the inner recipe's: one to send, one over n / W, two to
/// apply.
template <class Inner, class Merge = PullBack, Topology P = ScatterGather>
struct OverlapLocalSgd {
  static_assert(detail::check_meeting<Inner, Merge, Overlapped, detail::EarlyDenseTopologyOf<P>>());
  static_assert(P::exact, "terse: the anchor must be the same on all ranks: take an exact topology");

  Inner inner{};             ///< the recipe of local steps
  std::uint64_t period = 8;  ///< steps between two rounds, at least 1
  Merge merge{};             ///< merge of late means into the model

  recipes::LocalUpdatesOf<Inner, Merge, Overlapped, Inside::alone, Dense, NoErrorFeedback,
                          detail::EarlyDenseTopologyOf<P>>
  composition() const {
    return {.inner = inner, .period = period, .outer = merge};
  }
};

/// CoCoD-SGD.
template <class Inner, Topology P = ScatterGather>
using CocodSgd = OverlapLocalSgd<Inner, DelayCorrection, P>;

}  // namespace terse
