// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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
  double gradient = 0;              ///< of the gradient, as it takes where all ranks compute theirs
  double local = 0;                 ///< of processor time for the local passes: packing, summing, updating
  Round round;                      ///< what it sends
  Overlap overlap = Overlap::none;  ///< what hides messages
  double slices = 1;                ///< of a full-precision round, see Options::slice_bytes
  double waves = 1;  ///< rounds whose latencies follow each other: slices / 4, which are under way at a time
};

/// Seconds that the messages of a step take.
inline double wire_seconds(const Step& step, const Network& network) {
  return step.waves * latency_seconds(step.round, network) + transfer_seconds(step.round, network);
}

/// What travels while `slowdown` times as many ranks as cores compute: slices don't, for a rank that waits takes the core of one that
/// has yet to compute.
inline Overlap overlap_of(const Step& step, double slowdown) {
  return step.overlap == Overlap::slices && slowdown > 1 ? Overlap::none : step.overlap;
}

/// Seconds of a step.
///
///     none      gradient + local + wire
///     slices    max(gradient, wire) + min(gradient, wire) / slices + local, where cores are not shared
///     steps     max(gradient + local, wire)
///
/// with local times Node::slowdown(), and wire the sum over batches of
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

/// Up to which bandwidth, bytes a second of each link, from the slowest on, `step` is faster than `dense`: infinity where it is
/// over all, 0 where it isn't on the slowest. Beyond, it may be faster again: on links so fast that local passes decide.
/// `network` has the rest: latencies, and what all pairs at once lose.
inline double break_even_bandwidth(const Step& step, const Step& dense, const Network& network,
                                   double slowdown = 1) {
  const auto gain = [&](double bandwidth) {
    const Network other = with_bandwidth(network, bandwidth);
    return seconds(dense, other, slowdown) - seconds(step, other, slowdown);
  };
  // What no link is slower or faster than. A step's time is a straight line in 1 / bandwidth, with a bend where its messages are
  // just as long as what hides them, so that the gain changes its sign once at most between two of these.
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
