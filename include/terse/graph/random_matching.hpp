// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/settings.hpp"

namespace terse::graph {

/// A random matching: in each round the ranks are paired at random and each averages with its partner, W_ij = 1/2. All
/// matchings are equally likely; all ranks draw the same matching, from the seed. If the size is odd, one rank stays
/// alone. Symmetric and time-varying: heavy-ball methods diverge on it for large beta, see heavy_ball_growth. Cost:
/// O(size) for a row or list of receivers, size / 2 blocks of random numbers. Source: Boyd, Ghosh, Prabhakar, Shah,
/// "Randomized gossip algorithms", IEEE Trans. Inf. Theory 52 (2006), in its synchronous form.
struct RandomMatching {
  std::uint64_t seed = 0;  ///< seed of the pairs

  static constexpr bool fixed = false, symmetric = true, doubly_stochastic = true;
  static constexpr bool regular = false;  // because of odd sizes

  void check(int size) const { check_size(size); }
  static constexpr int most_neighbors(int) { return 1; }

  /// Returns the rank with which `rank` averages in this round, or -1.
  ///
  /// In the order of a random key of the round, the first rank is paired with the second, the third with the fourth,
  /// and so on. One pass finds a rank's place in that order and its two neighbours, without sorting.
  int partner(int rank, int size, std::uint64_t round) const {
    const Draw draw = Draw::shared(seed, round, Purpose::matching);
    const Key mine{draw.bits(static_cast<std::uint64_t>(rank)), rank};
    Key before{0, -1}, behind{0, -1};
    int place = 0;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const Key key{draw.bits(static_cast<std::uint64_t>(peer)), peer};
      if (key < mine) {
        ++place;
        if (before.rank < 0 || before < key) before = key;
      } else if (behind.rank < 0 || key < behind) {
        behind = key;
      }
    }
    return place % 2 == 0 ? behind.rank : before.rank;
  }

  /// Checks whether `from` sends to `to`, as an Adjacency does.
  bool sends(int from, int to, int size, std::uint64_t round) const {
    return partner(to, size, round) == from;
  }

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    edges.clear();
    if (const int peer = partner(rank, size, round); peer >= 0) edges.push_back({peer, 0.5});
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    peers.clear();
    if (const int peer = partner(rank, size, round); peer >= 0) peers.push_back(peer);
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    visit_bits("seed", seed, visit);
  }

 private:
  struct Key {
    std::uint64_t bits;
    int rank;
    bool operator<(const Key& other) const {
      return bits != other.bits ? bits < other.bits : rank < other.rank;
    }
  };
};

}  // namespace terse::graph
