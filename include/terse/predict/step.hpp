// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "terse/predict/round.hpp"

namespace terse::predict {

/// Part of a step's messages that overlaps with computation.
enum class Overlap {
  none,    ///< none: gradient, local passes and messages follow each other
  slices,  ///< full precision: a slice is sent when its gradients are ready, see Optimizer::ready
  steps,   ///< all: messages are in flight during the next steps (OverlapLocalSgd)
};

/// A method's average step on one rank, in seconds and bytes.
struct Step {
  double gradient = 0;              ///< seconds of the gradient while all ranks compute theirs
  double local = 0;                 ///< processor seconds of the local passes: packing, summing, updating
  Round round;                      ///< its batches
  Overlap overlap = Overlap::none;  ///< part of the messages that is hidden
  double slices = 1;                ///< slices of a full-precision round, see Options::slice_bytes
  double waves = 1;  ///< rounds whose latencies follow each other: slices / 4, as 4 are in flight at a time
};

/// Returns the seconds of a step's messages.
inline double wire_seconds(const Step& step, const Network& network) {
  return step.waves * latency_seconds(step.round, network) + transfer_seconds(step.round, network);
}

/// Returns the overlap while the computing ranks are `slowdown` times as many as the cores. Slices then don't overlap,
/// since a waiting rank takes the core of one that still computes.
inline Overlap overlap_of(const Step& step, double slowdown) {
  return step.overlap == Overlap::slices && slowdown > 1 ? Overlap::none : step.overlap;
}

/// Returns the seconds of a step:
///
///     none      gradient + local + wire
///     slices    max(gradient, wire) + min(gradient, wire) / slices + local, if cores are not shared
///     steps     max(gradient + local, wire)
///
/// with local multiplied by Node::slowdown(), and wire the sum over batches of
///
///     latency + (messages - 1) per_message + bytes / bandwidth
inline double seconds(const Step& step, const Network& network, double slowdown = 1) {
  const double wire = wire_seconds(step, network), local = step.local * slowdown;
  switch (overlap_of(step, slowdown)) {
    case Overlap::slices:
      return std::max(step.gradient, wire) + std::min(step.gradient, wire) / step.slices + local;
    case Overlap::steps:
      return std::max(step.gradient + local, wire);
    default:
      return step.gradient + local + wire;
  }
}

/// Returns the bandwidth of each link, in bytes per second, up to which `step` is faster than `dense`. It is infinity if
/// `step` is always faster, and 0 if it isn't even faster on the slowest link. On still faster links `step` may be faster
/// again, if they are so fast that the local passes determine the time. `network` has the other figures: latencies, and
/// the loss of bandwidth when all pairs send at the same time.
inline double break_even_bandwidth(const Step& step, const Step& dense, const Network& network,
                                   double slowdown = 1) {
  const auto gain = [&](double bandwidth) {
    const Network other = with_bandwidth(network, bandwidth);
    return seconds(dense, other, slowdown) - seconds(step, other, slowdown);
  };
  // Limits above the bandwidth of all links, and bends between them. A step's time is linear in 1 / bandwidth, with a bend
  // at the bandwidth at which its messages take as long as the computation that hides them. So the gain changes its sign at
  // most once between two points.
  std::vector<double> points{1, 1e15};
  for (const Step* one : {&step, &dense}) {
    const Overlap overlap = overlap_of(*one, slowdown);
    if (overlap == Overlap::none) continue;
    const double hidden = one->gradient + (overlap == Overlap::steps ? one->local * slowdown : 0);
    const double bend = transfer_seconds(one->round, with_bandwidth(network, 1)) /
                        (hidden - one->waves * latency_seconds(one->round, network));
    if (bend > points.front() && bend < 1e15) points.push_back(bend);
  }
  std::sort(points.begin(), points.end());
  const auto end =
      std::find_if(points.begin(), points.end(), [&](double bandwidth) { return !(gain(bandwidth) > 0); });
  if (end == points.end()) return std::numeric_limits<double>::infinity();
  if (end == points.begin()) return 0;
  double low = *(end - 1), high = *end;
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = std::sqrt(low * high);
    (gain(middle) > 0 ? low : high) = middle;
  }
  return low;
}

}  // namespace terse::predict
