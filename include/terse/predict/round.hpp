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

// What a round sends, as batches, and how long that takes. The functions named after topologies have it from formulas, for any
// number of ranks; `Recorded` has it from the optimizer at work.

namespace terse::predict {

/// `count` batches of one rank, one after the other, each begun when the one before it is done. A count may be a fraction,
/// where not all steps have such batches.
struct Batch {
  double messages = 0;  ///< out of this rank or into it, whichever are more
  double sent = 0;      ///< bytes out of this rank
  double moved = 0;     ///< bytes out of this rank or into it, whichever are more: both go at once
  double count = 1;     ///< of such batches; may be a fraction
  bool operator==(const Batch&) const = default;
};
/// What one rank does in a round, or in a step.
using Round = std::vector<Batch>;

/// How many messages a rank sends in a round.
inline double messages(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count * batch.messages;
  return sum;
}
/// How many bytes a rank sends in a round.
inline double bytes_sent(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count * batch.sent;
  return sum;
}
/// How often a rank waits for others.
inline double phases(const Round& round) {
  double sum = 0;
  for (const Batch& batch : round) sum += batch.count;
  return sum;
}

/// Seconds of the part of a round that doesn't depend on bytes, and of the one that does.
inline double latency_seconds(const Round& round, const Network& network) {
  double sum = 0;
  for (const Batch& batch : round)
    sum += batch.count * (network.latency + std::max(0.0, batch.messages - 1) * network.per_message);
  return sum;
}
/// Seconds that a round's bytes take: at `bandwidth`; of a batch of several messages, those beyond `queue` at
/// `pairs_bandwidth`.
inline double transfer_seconds(const Round& round, const Network& network) {
  double sum = 0;
  for (const Batch& batch : round) {
    const double behind = batch.messages > 1 ? std::max(0.0, batch.moved - network.queue) : 0;
    sum += batch.count * ((batch.moved - behind) / network.bandwidth + behind / network.pairs_bandwidth);
  }
  return sum;
}
/// Seconds that a round takes: its latencies and its transfers, one after the other.
inline double seconds(const Round& round, const Network& network) {
  return latency_seconds(round, network) + transfer_seconds(round, network);
}

/// The same round with so many times the bytes.
inline Round scaled(Round round, double factor) {
  for (Batch& batch : round) {
    batch.sent *= factor;
    batch.moved *= factor;
  }
  return round;
}
/// The same round `factor` times.
inline Round repeated(Round round, double factor) {
  for (Batch& batch : round) batch.count *= factor;
  return round;
}

// Topologies among W ranks, whose packet of all elements has so many bytes. Headers, 32 bytes a packet, are in none of them.

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

/// ScatterGather: two batches to and from all others, 1 / W of the packet each.
inline Round scatter_gather(int ranks, double packet) {
  detail::check_count("scatter_gather", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(ranks - 1, packet * (ranks - 1) / ranks, 2)};
}
/// Ring: 2 (W - 1) batches of 1 / W of the packet to the successor.
inline Round ring(int ranks, double packet) {
  detail::check_count("ring", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(1, packet / ranks, 2.0 * (ranks - 1))};
}
/// BySize<>: full precision of `elements` floats in slices of Options::slice_bytes, whose size decides; see topology/by_size.hpp
/// for `from`. All slices in one round: latencies that follow each other are Step::waves.
inline Round by_size(int ranks, index_t elements, index_t from = index_t{1} << 16,
                     index_t slice_bytes = automatic_slices) {
  detail::check_count("by_size", "ranks", ranks, 1);
  const double packet = 4.0 * static_cast<double>(elements);
  // Slices differ by less than 128 elements.
  const index_t slice =
      slices_of(Range({{0, 0, elements}}), terse::detail::slice_bytes_of(slice_bytes, false, false))
          .front()
          .elements();
  return slice / ranks >= from ? ring(ranks, packet) : scatter_gather(ranks, packet);
}
/// AllGather: one batch, the whole packet to each other one.
inline Round all_gather(int ranks, double packet) {
  detail::check_count("all_gather", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {detail::batch(ranks - 1, packet * (ranks - 1))};
}
/// Star, as its center has it, for which all others wait: W - 1 packets come, and as many go.
inline Round star_center(int ranks, double packet) {
  detail::check_count("star_center", "ranks", ranks, 1);
  if (ranks == 1) return {};
  const double others = ranks - 1;
  return {{others, 0, packet * others}, {others, packet * others, packet * others}};
}
/// Star, as all others have it, apart from their wait for the center.
inline Round star_leaf(int ranks, double packet) {
  detail::check_count("star_leaf", "ranks", ranks, 1);
  if (ranks == 1) return {};
  return {{1, packet, packet}, {1, 0, packet}};
}
/// Native: what no algorithm of a transport can do without, in as few phases as halving and doubling take.
inline Round native(int ranks, double packet) {
  detail::check_count("native", "ranks", ranks, 1);
  if (ranks == 1) return {};
  int doublings = 0;
  while ((1LL << doublings) < ranks) ++doublings;
  return {detail::batch(1, packet * (ranks - 1) / ranks / doublings, 2.0 * doublings)};
}
/// Gossip with `degree` neighbours, out and in.
inline Round gossip(int degree, double packet) {
  detail::check_count("gossip", "degree", degree, 0);
  if (degree == 0) return {};
  return {detail::batch(degree, packet * degree)};
}

/// A hierarchy's batches within a node and between nodes, each over its own network.
struct TwoLevels {
  Round inside, across;
};
/// Hierarchical<Inner, Outer> over `elements` floats: halves of `inner` within a node of L ranks, and `outer` among the nodes, for
/// 1 / L of the packet. Rounds as above: hierarchical(64, 8, n, packet, ring, scatter_gather).
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
/// Seconds that a round on two levels takes: within nodes, then across them.
inline double seconds(const TwoLevels& round, const Network& inside, const Network& across) {
  return seconds(round.inside, inside) + seconds(round.across, across);
}

}  // namespace terse::predict
