// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "terse/graph/concept.hpp"

namespace terse::graph {

/// A graph in which each rank averages with at most one other rank in a round: W_ij = 1/2. It has
///
///     partner(rank, size, round)    the other rank, whose partner this one is, or -1
///
/// RandomMatching, RandomEdge and Spaced are such graphs.
template <class G>
concept PairGraph =
    Graph<G> && G::symmetric && !Traits<G>::lazy && requires(const G& graph, int n, std::uint64_t round) {
  { graph.partner(n, n, round) } -> std::same_as<int>;
};

namespace detail {

/// Makes the row of a rank with this partner, or with none (-1).
inline void partner_row(int partner, std::vector<Edge>& edges) {
  edges.clear();
  if (partner >= 0) edges.push_back({partner, 0.5});
}
inline void partner_receivers(int partner, std::vector<int>& peers) {
  peers.clear();
  if (partner >= 0) peers.push_back(partner);
}

}  // namespace detail

}  // namespace terse::graph
