// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "terse/graph/adjacency.hpp"
#include "terse/graph/concept.hpp"

namespace terse::graph {

/// Makes the row of W_ij = 1 / (in-degree of i + 1). O(size).
template <Adjacency A>
void uniform_row(const A& adjacency, int rank, int size, std::uint64_t round, std::vector<Edge>& edges) {
  edges.clear();
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank && adjacency.sends(peer, rank, size, round)) edges.push_back({peer, 0});
  for (Edge& edge : edges) edge.weight = 1 / static_cast<double>(edges.size() + 1);
}

/// Makes the row of W_ij = 1 / (max(degree of i, degree of j) + 1). O(size * degree).
template <Adjacency A>
void metropolis_hastings_row(const A& adjacency, int rank, int size, std::uint64_t round,
                             std::vector<Edge>& edges) {
  uniform_row(adjacency, rank, size, round, edges);
  const int mine = static_cast<int>(edges.size());
  for (Edge& edge : edges)
    edge.weight = 1.0 / (std::max(mine, in_degree(adjacency, edge.peer, size, round)) + 1);
}

/// The mean over a rank and its in-neighbours: W_ij = 1 / (in-degree of i + 1). It is doubly stochastic on regular
/// graphs. On other graphs the mean drifts: use MetropolisHastings or PushSum there. Cost: O(size) a row.
template <Adjacency A>
struct Uniform : A {
  static constexpr bool symmetric = A::symmetric && A::regular;
  static constexpr bool doubly_stochastic = A::regular;
  // If A is a graph, its flags hold for its own weights only.
  static constexpr bool spectrum_above_minus_third = false, lazy = false, known_at_construction = false;

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    uniform_row<A>(*this, rank, size, round, edges);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    out_neighbors<A>(*this, rank, size, round, peers);
  }
};

/// Metropolis-Hastings weights, W_ij = 1 / (max(degree of i, degree of j) + 1): symmetric and doubly stochastic on any
/// undirected graph.
/// Source: Xiao, Boyd, Kim, "Distributed average consensus with least-mean-square deviation", J. Parallel Distrib.
/// Comput. 67 (2007). Cost: O(size * degree) a row.
template <Adjacency A>
struct MetropolisHastings : A {
  static_assert(A::symmetric,
                "terse: Metropolis-Hastings weights need neighbours in both directions. For directed graphs "
                "there are Uniform, if regular, and PushSum");
  static constexpr bool symmetric = true, doubly_stochastic = true;
  // If A is a graph, its flags hold for its own weights only.
  static constexpr bool spectrum_above_minus_third = false, lazy = false, known_at_construction = false;

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    metropolis_hastings_row<A>(*this, rank, size, round, edges);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    out_neighbors<A>(*this, rank, size, round, peers);
  }
};

}  // namespace terse::graph
