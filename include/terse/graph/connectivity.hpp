// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "terse/graph/adjacency.hpp"

namespace terse::graph {

/// Returns the first rank that can't be reached from `start` along round 0's edges, or -1. With `backwards`: the
/// first rank that can't reach `start`. O(size^2) and allocates: for checks.
template <Adjacency A>
int unreached(const A& adjacency, int size, int start, bool backwards = false) {
  std::vector<char> seen(static_cast<std::size_t>(size), 0);
  std::vector<int> open{start};
  seen[static_cast<std::size_t>(start)] = 1;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    for (int peer = 0; peer < size; ++peer) {
      char& mark = seen[static_cast<std::size_t>(peer)];
      if (mark != 0) continue;
      if (backwards ? !adjacency.sends(peer, rank, size, 0) : !adjacency.sends(rank, peer, size, 0)) continue;
      mark = 1;
      open.push_back(peer);
    }
  }
  for (int rank = 0; rank < size; ++rank)
    if (seen[static_cast<std::size_t>(rank)] == 0) return rank;
  return -1;
}

}  // namespace terse::graph
