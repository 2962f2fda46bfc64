// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "terse/predict/round.hpp"

namespace terse::predict {

/// What of a step's messages travels while ranks compute.
enum class Overlap {
  none,    ///< nothing: gradient, local passes and messages one after the other
  slices,  ///< full precision: a slice leaves when its gradients are ready, see Optimizer::ready
  steps,   ///< all: messages travel during the next steps (OverlapLocalSgd)
};

/// A method's average step on one rank. Seconds, bytes.
struct Step {
  double gradient = 0;  ///< of the gradient, as it takes where all ranks compute theirs
  double local = 0;     ///< of processor time for the local passes: packing, summing, updating
  Round round;          ///< what it sends
  Overlap overlap = Overlap::none;
  double slices = 1;  ///< of a full-precision round, see Options::slice_bytes
  double waves = 1;   ///< rounds whose latencies follow each other: slices / 4, which are under way at a time
};

/// Seconds that the messages of a step take.
inline double wire_seconds(const Step& step, const Network& network) {
  return step.waves * latency_seconds(step.round, network) + transfer_seconds(step.round, network);
}

/// Seconds of a step.
///
///     none      gradient + local + wire
///     slices    max(gradient, wire) + min(gradient, wire) / slices + local
///     steps     max(gradient + local, wire)
///
/// with local times Node::slowdown(), and wire the sum over batches of
///
///     latency + (messages - 1) per_message + bytes / bandwidth
inline double seconds(const Step& step, const Network& network, double slowdown = 1) {
  const double wire = wire_seconds(step, network), local = step.local * slowdown;
  switch (step.overlap) {
    case Overlap::slices:
      return std::max(step.gradient, wire) + std::min(step.gradient, wire) / step.slices + local;
    case Overlap::steps:
      return std::max(step.gradient + local, wire);
    default:
      return step.gradient + local + wire;
  }
}

/// The bandwidth, bytes a second of each link, below which `step` is faster than `dense`: infinity where it always is, 0 where it
/// never is. `network` has the rest: latencies, and what all pairs at once lose.
inline double break_even_bandwidth(const Step& step, const Step& dense, const Network& network,
                                   double slowdown = 1) {
  const auto gain = [&](double bandwidth) {
    const Network other = with_bandwidth(network, bandwidth);
    return seconds(dense, other, slowdown) - seconds(step, other, slowdown);
  };
  // What no link is slower or faster than.
  double low = 1, high = 1e15;
  if (gain(high) > 0) return std::numeric_limits<double>::infinity();
  if (!(gain(low) > 0)) return 0;
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = std::sqrt(low * high);
    (gain(middle) > 0 ? low : high) = middle;
  }
  return low;
}

}  // namespace terse::predict
