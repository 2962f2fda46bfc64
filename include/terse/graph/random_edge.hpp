// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/graph/pairs.hpp"
#include "terse/graph/settings.hpp"

namespace terse::graph {

/// A graph of one random pair: in each round two random ranks average, W_ij = 1/2, and all others stay alone. All
/// pairs are equally likely; all ranks draw the same pair, from the seed. A rank takes part in 2 / size of the
/// rounds. Symmetric and time-varying. Cost: one block of random numbers for a row or list of receivers. Source:
/// Boyd, Ghosh, Prabhakar, Shah, "Randomized gossip algorithms", IEEE Trans. Inf. Theory 52 (2006), in its
/// asynchronous form with one event per round.
struct RandomEdge {
  std::uint64_t seed = 0;  ///< seed of the pairs

  static constexpr bool fixed = false, symmetric = true, doubly_stochastic = true, regular = false;

  void check(int size) const { check_size(size); }
  static constexpr int most_neighbors(int) { return 1; }

  /// Returns the rank with which `rank` averages in this round, or -1.
  int partner(int rank, int size, std::uint64_t round) const {
    if (size < 2) return -1;
    const Draw draw = Draw::shared(seed, round, Purpose::matching);
    const auto one = static_cast<int>(draw.below(static_cast<std::uint64_t>(size), 0));
    auto other = static_cast<int>(draw.below(static_cast<std::uint64_t>(size - 1), 1));
    if (other >= one) ++other;
    return rank == one ? other : rank == other ? one : -1;
  }

  /// Checks whether `from` sends to `to`, as an Adjacency does.
  bool sends(int from, int to, int size, std::uint64_t round) const {
    return partner(to, size, round) == from;
  }

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    detail::partner_row(partner(rank, size, round), edges);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    detail::partner_receivers(partner(rank, size, round), peers);
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    visit_bits("seed", seed, visit);
  }
};

}  // namespace terse::graph
