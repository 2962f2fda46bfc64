// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

namespace pipeline {

/// What a step of one stage is made of, in seconds.
struct StageTimes {
  double forward = 0, backward = 0;              ///< a pass of a micro-batch
  double sends_forward = 0, sends_backward = 0;  ///< the way of a message through the link; 0 at the ends
};

/// Seconds of a step of `micro_batches`, of stages that needn't be alike: a micro-batch goes through all, and the slowest
/// pass or message holds up the others. With GPipe
///
///     sum of (tf + tb) + sum of (cf + cb + 2 delay) + (M - 1) (max(tf, cf) + max(tb, cb))
///
/// maxima over the stages; with one-forward-one-backward and no time for messages
///
///     sum of (tf + tb) + (M - 1) max(tf + tb)
inline std::optional<double> closed_form(const std::vector<StageTimes>& stages, double micro_batches,
                                         double delay, bool gpipe) {
  double through = 0, wire = 0, slowest_forward = 0, slowest_backward = 0, slowest_both = 0;
  for (const StageTimes& one : stages) {
    through += one.forward + one.backward;
    wire += one.sends_forward + one.sends_backward;
    slowest_forward = std::max({slowest_forward, one.forward, one.sends_forward});
    slowest_backward = std::max({slowest_backward, one.backward, one.sends_backward});
    slowest_both = std::max(slowest_both, one.forward + one.backward);
  }
  wire += 2 * delay * static_cast<double>(stages.size() - 1);
  if (gpipe) return through + wire + (micro_batches - 1) * (slowest_forward + slowest_backward);
  if (wire > 0) return std::nullopt;
  return through + (micro_batches - 1) * slowest_both;
}

}  // namespace pipeline
