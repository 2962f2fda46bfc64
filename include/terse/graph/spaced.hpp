// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/graph/pairs.hpp"
#include "terse/graph/settings.hpp"

namespace terse::graph {

/// The number of rounds between two in which a rank may meet its partner. It is fixed or geometric, as if meetings
/// were a Poisson process.
enum class Spacing { fixed, geometric };

/// The pairs of G, with rounds between meetings.
///
///     fixed        every period-th round is G's next; in the others all are alone
///     geometric    every round is G's next, and each of its pairs meets with probability 1 / period, drawn for the
///                  pair: the rounds from one meeting of a rank to its next are geometric, with mean `period`
///
/// if G leaves no rank alone. If a rank has a partner in a part f of G's rounds, it meets one every period / f
/// rounds. All ranks draw the same meetings, from the seeds. Errors: check() throws usage_error for a period of 0.
/// Cost: G's and, if geometric, a block of random numbers.
template <PairGraph G>
struct Spaced {
  G graph{};                         ///< the pairs
  std::uint64_t period = 8;          ///< rounds between two meetings, at least 1
  Spacing spacing = Spacing::fixed;  ///< `period` as a fixed number or as a mean
  std::uint64_t seed = 0;            ///< seed of the meetings, if geometric

  static constexpr bool fixed = false, symmetric = true, doubly_stochastic = true, regular = false;

  void check(int size) const {
    if (period < 1) throw usage_error("period must be at least 1, not 0");
    graph.check(size);
  }
  static constexpr int most_neighbors(int) { return 1; }

  /// Returns the rank with which `rank` averages in this round, or -1.
  int partner(int rank, int size, std::uint64_t round) const {
    if (spacing == Spacing::fixed)
      return (round + 1) % period == 0 ? graph.partner(rank, size, (round + 1) / period - 1) : -1;
    const int peer = graph.partner(rank, size, round);
    if (peer < 0) return -1;
    // Far from the indices at which G draws, in case both seeds are equal.
    const auto pair = (std::uint64_t{1} << 32) + static_cast<std::uint64_t>(std::min(rank, peer));
    return Draw::shared(seed, round, Purpose::matching).below(period, pair) == 0 ? peer : -1;
  }

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    detail::partner_row(partner(rank, size, round), edges);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    detail::partner_receivers(partner(rank, size, round), peers);
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    visit("period", static_cast<double>(period));
    visit("spacing", static_cast<double>(spacing));
    visit_bits("seed", seed, visit);
    visit_settings(graph, visit);
  }
};

}  // namespace terse::graph
