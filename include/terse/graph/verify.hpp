// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/spectrum.hpp"
#include "terse/graph/stochastic.hpp"

namespace terse::graph {

namespace detail {

inline std::string place(int rank, std::uint64_t round) {
  return "in round " + std::to_string(round) + " rank " + std::to_string(rank);
}

/// Throws unless these edges are a valid row.
void verify_row(const std::vector<Edge>& edges, int rank, int size, std::uint64_t round);

/// Throws unless `receivers` are the ranks whose rows contain `rank`.
void verify_receivers(const std::vector<int>& receivers, int rank, int size, std::uint64_t round,
                      const std::vector<double>& matrix);

void verify_flag(bool holds, const char* flag, std::uint64_t round);

}  // namespace detail

/// Compares a graph's declarations with its matrices in rounds 0 ... rounds - 1: for tests of custom graphs.
/// Throws usage_error that names the fault: the order or signs of a row, receivers() that don't match, a flag that does
/// not hold. Cost: O(rounds * size^3).
template <Graph G>
void verify(const G& graph, int size, std::uint64_t rounds) {
  graph.check(size);
  std::vector<double> first;
  std::vector<Edge> edges;
  std::vector<int> peers;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::size_t in = 0, out = 0;
    for (int rank = 0; rank < size; ++rank) {
      graph.row(rank, size, round, edges);
      graph.receivers(rank, size, round, peers);
      detail::verify_row(edges, rank, size, round);
      if (rank == 0) in = edges.size(), out = peers.size();
      detail::verify_flag(!G::regular || (edges.size() == in && peers.size() == out), "regular", round);
    }
    const std::vector<double> matrix = matrix_of(graph, size, round);
    for (int rank = 0; rank < size; ++rank) {
      graph.receivers(rank, size, round, peers);
      detail::verify_receivers(peers, rank, size, round, matrix);
    }
    check_stochastic(matrix, size,
                     G::symmetric           ? Stochastic::symmetric
                     : G::doubly_stochastic ? Stochastic::doubly
                                            : Stochastic::rows);
    if constexpr (Traits<G>::spectrum_above_minus_third)
      detail::verify_flag(smallest_eigenvalue(matrix) > -1.0 / 3 + stochastic_tolerance,
                          "spectrum_above_minus_third", round);
    if (round == 0) first = matrix;
    detail::verify_flag(!G::fixed || matrix == first, "fixed", round);
  }
}

}  // namespace terse::graph

#ifndef TERSE_SEPARATE
#include "terse/graph/verify.ipp"
#endif
