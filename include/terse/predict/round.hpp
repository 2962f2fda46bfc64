// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/view.hpp"
#include "terse/optimizer/options.hpp"
#include "terse/plan.hpp"
#include "terse/predict/network.hpp"

// The batches of a round, and their time. The functions that have names of topologies compute the batches by formula,
// for any number of ranks; `Recorded` records them from a running optimizer.

namespace terse::predict {

/// `count` batches of one rank, one after another, each started when the one before is done. A count may be a fraction if
/// not all steps have such batches.
struct Batch {
  double messages = 0;  ///< messages out of this rank or into it, the larger number
  double sent = 0;      ///< bytes out of this rank
  double moved = 0;     ///< bytes out of this rank or into it, the larger number, since both go at once
  double count = 1;     ///< number of such batches; may be a fraction
  bool operator==(const Batch&) const = default;
};
/// Batches of one rank in a round, or in a step.
using Round = std::vector<Batch>;

/// Returns the number of messages of a rank in a round.
inline double messages(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count * batch.messages;
  return sum;
}
/// Returns the number of bytes that a rank sends in a round.
inline double bytes_sent(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count * batch.sent;
  return sum;
}
/// Returns how often a rank waits for others in a round.
inline double phases(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count;
  return sum;
}

/// Returns the seconds of a round that don't depend on its bytes.
inline double latency_seconds(const Round& round, const Network& network) {
  double sum = 0;
  for (const Batch& batch : round)
    sum += batch.count * (network.latency + std::max(0.0, batch.messages - 1) * network.per_message);
  return sum;
}
/// Returns the seconds that a round's bytes take at `bandwidth`. In a batch of several messages, bytes beyond `queue`
/// travel at `pairs_bandwidth`.
inline double transfer_seconds(const Round& round, const Network& network) {
  double sum = 0;
  for (const Batch& batch : round) {
    const double behind = batch.messages > 1 ? std::max(0.0, batch.moved - network.queue) : 0;
    sum += batch.count * ((batch.moved - behind) / network.bandwidth + behind / network.pairs_bandwidth);
  }
  return sum;
}
/// Returns the seconds of a round: its latencies plus its transfers.
inline double seconds(const Round& round, const Network& network) {
  return latency_seconds(round, network) + transfer_seconds(round, network);
}

/// Returns the round with `factor` times the bytes.
inline Round scaled(Round round, double factor) {
  for (Batch& batch : round) {
    batch.sent *= factor;
    batch.moved *= factor;
  }
  return round;
}
/// Returns the round repeated `factor` times.
inline Round repeated(Round round, double factor) {
  for (Batch& batch : round) batch.count *= factor;
  return round;
}

// Topologies among W ranks, for a packet of all elements of `packet` bytes. Headers, 32 bytes per packet, are not included.

namespace detail {

inline Batch batch(double messages, double bytes, double count = 1) {
  return {messages, bytes, bytes, count};
}
inline void check_count(const char* topology, const char* what, int count, int least) {
  if (count < least)
    throw usage_error(std::string(topology) + ": " + what + " is " + std::to_string(count) +
                      ", and must be " + std::to_string(least) + " or more");
}

}  // namespace detail

/// Returns the round of ScatterGather: two batches to and from all others, with messages of 1 / W of the packet.
inline Round scatter_gather(int ranks, double packet) {
  detail::check_count("scatter_gather", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(ranks - 1, packet * (ranks - 1) / ranks, 2)};
}
/// Returns the round of Ring: 2 (W - 1) batches of 1 / W of the packet to the successor.
inline Round ring(int ranks, double packet) {
  detail::check_count("ring", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(1, packet / ranks, 2.0 * (ranks - 1))};
}
/// Returns the round of BySize<>: `elements` floats in full precision, in slices of Options::slice_bytes, whose size
/// determines the topology; see topology/by_size.hpp for `from`. It contains all slices; Step::waves counts latencies
/// that follow each other.
inline Round by_size(int ranks, index_t elements, index_t from = index_t{1} << 16,
                     index_t slice_bytes = automatic_slices) {
  detail::check_count("by_size", "ranks", ranks, 1);
  const double packet = 4.0 * static_cast<double>(elements);
  // Slices differ by less than 128 elements.
  const index_t slice = terse::detail::slices_of(Range({{0, 0, elements}}),
                                                 terse::detail::slice_bytes_of(slice_bytes, false, false))
                            .front()
                            .elements();
  return slice / ranks >= from ? ring(ranks, packet) : scatter_gather(ranks, packet);
}
/// Returns the round of AllGather: one batch with the whole packet to each other rank.
inline Round all_gather(int ranks, double packet) {
  detail::check_count("all_gather", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(ranks - 1, packet * (ranks - 1))};
}
/// Returns the round of Star on its center, for which all other ranks wait: W - 1 packets come in, and W - 1 go out.
inline Round star_center(int ranks, double packet) {
  detail::check_count("star_center", "ranks", ranks, 1);
  if (ranks == 1) return {};
  const double others = ranks - 1;
  return {{others, 0, packet * others}, {others, packet * others, packet * others}};
}
/// Returns the round of Star on all other ranks, without their wait for the center.
inline Round star_leaf(int ranks, double packet) {
  detail::check_count("star_leaf", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {{1, packet, packet}, {1, 0, packet}};
}
/// Returns the round of Native: the minimum traffic of any algorithm, in as few phases as halving and doubling need.
inline Round native(int ranks, double packet) {
  detail::check_count("native", "ranks", ranks, 1);
  if (ranks == 1) return {};
  int doublings = 0;
  while ((1LL << doublings) < ranks) ++doublings;
  return {detail::batch(1, packet * (ranks - 1) / ranks / doublings, 2.0 * doublings)};
}
/// Returns the round of gossip with `degree` neighbours, out and in.
inline Round gossip(int degree, double packet) {
  detail::check_count("gossip", "degree", degree, 0);
  if (degree == 0) return {};
  return {detail::batch(degree, packet * degree)};
}

/// Batches of a hierarchy within a node and between nodes, each over its own network.
struct TwoLevels {
  Round inside, across;
};
/// Returns the rounds of Hierarchical<Inner, Outer> over `elements` floats: the halves of `inner` within a node of L ranks,
/// and `outer` among the nodes, for 1 / L of the packet. It takes the functions above, as in hierarchical(64, 8, n, packet,
/// ring, scatter_gather).
template <class Inner, class Outer>
TwoLevels hierarchical(int ranks, int ranks_per_node, index_t elements, double packet, Inner inner,
                       Outer outer) {
  detail::check_count("hierarchical", "ranks", ranks, 1);
  if (ranks_per_node < 1 || ranks % ranks_per_node != 0)
    throw usage_error("ranks_per_node is " + std::to_string(ranks_per_node) + ", which does not divide " +
                      std::to_string(ranks) + " ranks");
  return {inner(ranks_per_node, 4.0 * static_cast<double>(elements)),
          outer(ranks / ranks_per_node, packet / ranks_per_node)};
}
/// Returns the seconds of a round on two levels: within nodes, then across them.
inline double seconds(const TwoLevels& round, const Network& inside, const Network& across) {
  return seconds(round.inside, inside) + seconds(round.across, across);
}

}  // namespace terse::predict
