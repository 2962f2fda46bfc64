// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "terse/core/error.hpp"

namespace terse::predict {

/// What a step's messages meet, all ranks sending at once. Seconds and bytes a second.
struct Network {
  /// From the start of a batch of one small message each way until it is done.
  double latency = 0;
  /// What each further message of a batch adds to that, on the rank that sends and receives it.
  double per_message = 0;
  /// Out of a rank and into it at the same time, each rank sending to one other.
  double bandwidth = std::numeric_limits<double>::infinity();
  /// The same, each rank sending to several others at once, behind the first `queue` bytes of a batch, which go by `bandwidth`:
  /// several senders fill one receiver's queue, and what finds it full is lost and sent again.
  double pairs_bandwidth = std::numeric_limits<double>::infinity();
  double queue = 0;  ///< bytes
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

/// One that is known from its figures alone, without queues. Throws as `check` does.
inline Network ideal_network(double latency, double bandwidth) {
  const Network network{latency, 0, bandwidth, bandwidth, 0};
  check(network);
  return network;
}

/// The same one with links of another bandwidth. Throws as `check` does.
inline Network with_bandwidth(Network network, double bandwidth) {
  const double queues = std::isfinite(network.bandwidth) ? network.pairs_bandwidth / network.bandwidth : 1;
  network.bandwidth = bandwidth;
  network.pairs_bandwidth = bandwidth * queues;
  check(network);
  return network;
}

/// How many ranks share a machine's cores. Passes that all its ranks make at the same time take `slowdown()` times as long as
/// one rank's alone.
struct Node {
  int ranks = 1;  ///< on this machine
  int cores = 1;  ///< that they share
  double slowdown() const { return ranks > cores ? static_cast<double>(ranks) / cores : 1; }
};

}  // namespace terse::predict
