// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/graph/concept.hpp"

namespace terse::graph {

/// A graph with the matrix (I + W) / 2: half of each weight goes back to the rank itself. The eigenvalues of a
/// symmetric W move into [0, 1]. Exact diffusion (D2) and some symmetric time-varying schedules with momentum need
/// this. rho may grow to (1 + rho) / 2, so mixing takes up to twice the rounds, with the same messages.
template <Graph G>
struct Lazy : G {
  static_assert(!Traits<G>::push_sum,
                "terse: push-sum weights belong to G's own rows; there is no lazy version of them");
  static constexpr bool lazy = true;
  static constexpr bool spectrum_above_minus_third = G::symmetric;

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    G::row(rank, size, round, edges);
    for (Edge& edge : edges) edge.weight /= 2;
  }
};

}  // namespace terse::graph
