// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "terse/graph/concept.hpp"

namespace terse::graph {

/// A pattern of senders and receivers without weights, which is the minimum that a user writes for a custom graph.
///
///     check(size)                    as for a Graph
///     sends(from, to, size, round)   true if `to` receives from `from`; called for from != to only
///
/// Flags: `fixed`, `symmetric` (sends(i, j) = sends(j, i)), `regular` (all ranks have the same number of in-
/// neighbours, and as many out-neighbours). Weights, see Uniform and MetropolisHastings, make it a graph.
template <class A>
concept Adjacency = std::copyable<A> && requires(const A& adjacency, int n, std::uint64_t round) {
  { A::fixed } -> std::convertible_to<bool>;
  { A::symmetric } -> std::convertible_to<bool>;
  { A::regular } -> std::convertible_to<bool>;
  adjacency.check(n);
  { adjacency.sends(n, n, n, round) } -> std::convertible_to<bool>;
};

/// Returns the number of ranks from which `rank` receives. O(size).
template <Adjacency A>
int in_degree(const A& adjacency, int rank, int size, std::uint64_t round) {
  int degree = 0;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank && adjacency.sends(peer, rank, size, round)) ++degree;
  return degree;
}

/// Returns the number of ranks to which `rank` sends. O(size).
template <Adjacency A>
int out_degree(const A& adjacency, int rank, int size, std::uint64_t round) {
  int degree = 0;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank && adjacency.sends(rank, peer, size, round)) ++degree;
  return degree;
}

/// Replaces `peers` by the ascending ranks to which `rank` sends. O(size).
template <Adjacency A>
void out_neighbors(const A& adjacency, int rank, int size, std::uint64_t round, std::vector<int>& peers) {
  peers.clear();
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank && adjacency.sends(rank, peer, size, round)) peers.push_back(peer);
}

}  // namespace terse::graph
