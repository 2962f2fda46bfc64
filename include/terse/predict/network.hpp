// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "terse/core/error.hpp"

namespace terse::predict {

/// Figures of a network on which all ranks send at the same time, in seconds and bytes per second.
struct Network {
  /// Duration of a batch of one small message in each direction.
  double latency = 0;
  /// Additional time for each further message of a batch, on the rank that sends and receives it.
  double per_message = 0;
  /// Bandwidth of a rank, out and in at the same time, if each rank sends to one other rank.
  double bandwidth = std::numeric_limits<double>::infinity();
  /// Bandwidth of a rank if each rank sends to several others at the same time, after the first `queue` bytes of a batch,
  /// which travel at `bandwidth`. Several senders then fill one receiver's queue, and data that arrives at a full queue is
  /// lost and sent again.
  double pairs_bandwidth = std::numeric_limits<double>::infinity();
  double queue = 0;  ///< bytes of a batch that are sent before `pairs_bandwidth` applies
};

/// Throws usage_error for figures that no network has.
inline void check(const Network& network) {
  const auto fail = [](const char* what, double value, const char* wanted) {
    throw usage_error(std::string("a network's ") + what + " is " + std::to_string(value) + ", and must be " +
                      wanted);
  };
  if (!(network.latency >= 0) || std::isinf(network.latency))
    fail("latency", network.latency, "0 seconds or more");
  if (!(network.per_message >= 0) || std::isinf(network.per_message))
    fail("time for each message", network.per_message, "0 seconds or more");
  if (!(network.bandwidth > 0)) fail("bandwidth", network.bandwidth, "above 0 bytes a second");
  if (!(network.pairs_bandwidth > 0))
    fail("bandwidth of all pairs", network.pairs_bandwidth, "above 0 bytes a second");
  if (!(network.queue >= 0)) fail("queue", network.queue, "0 bytes or more");
}

/// Returns a network that is known only by these figures, without queues. Throws as `check` does.
inline Network ideal_network(double latency, double bandwidth) {
  const Network network{latency, 0, bandwidth, bandwidth, 0};
  check(network);
  return network;
}

/// Returns the network with links of another bandwidth. Throws as `check` does.
inline Network with_bandwidth(Network network, double bandwidth) {
  const double queues = std::isfinite(network.bandwidth) ? network.pairs_bandwidth / network.bandwidth : 1;
  network.bandwidth = bandwidth;
  network.pairs_bandwidth = bandwidth * queues;
  check(network);
  return network;
}

/// Ranks that share a machine's cores. A pass that all of them make at the same time takes `slowdown()` times as long as
/// that of one rank alone.
struct Node {
  int ranks = 1;  ///< ranks on this machine
  int cores = 1;  ///< cores that they share
  double slowdown() const { return ranks > cores ? static_cast<double>(ranks) / cores : 1; }
};

}  // namespace terse::predict
