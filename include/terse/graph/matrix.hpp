// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/settings.hpp"
#include "terse/graph/stochastic.hpp"

namespace terse::graph {

/// A custom mixing matrix, row-major: `SymmetricMatrix{.weights = {0.5, 0.5, 0.5, 0.5}}`. Its kind is declared at
/// compile time, so that methods can refuse it there; check() verifies the kind. Errors: check() throws usage_error,
/// which names row and column, in three cases: the matrix does not fit the number of ranks, has entries that are
/// negative or not finite, or is not of its kind within 1e-9. Cost: O(size) a row; size^2 doubles on each rank.
template <Stochastic kind>
struct Matrix {
  std::vector<double> weights;  ///< row after row

  static constexpr bool fixed = true, regular = false;
  static constexpr bool symmetric = kind == Stochastic::symmetric;
  static constexpr bool doubly_stochastic = kind != Stochastic::rows;
  static constexpr bool known_at_construction = symmetric;

  void check(int size) const {
    check_size(size);
    if (const int order = order_of(weights); order != size)
      throw usage_error("this mixing matrix is " + std::to_string(order) + " x " + std::to_string(order) +
                        ", but there are " + std::to_string(size) + " ranks");
    check_stochastic(weights, size, kind);
  }

  /// Checks whether the weight is not 0, as an Adjacency does.
  bool sends(int from, int to, int size, std::uint64_t) const { return at(to, from, size) > 0; }

  void row(int rank, int size, std::uint64_t, std::vector<Edge>& edges) const {
    edges.clear();
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank && at(rank, peer, size) > 0) edges.push_back({peer, at(rank, peer, size)});
  }
  void receivers(int rank, int size, std::uint64_t, std::vector<int>& peers) const {
    peers.clear();
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank && at(peer, rank, size) > 0) peers.push_back(peer);
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    std::uint64_t hash = 0;
    for (const double weight : weights) hash = mix_hash(hash, std::bit_cast<std::uint64_t>(weight));
    visit_bits("matrix", hash, visit);
  }

 private:
  double at(int row, int column, int size) const {
    return weights[static_cast<std::size_t>(row) * static_cast<std::size_t>(size) +
                   static_cast<std::size_t>(column)];
  }
};

/// A matrix whose rows sum to 1: the ranks agree, but not on the mean.
using RowStochasticMatrix = Matrix<Stochastic::rows>;
/// A matrix whose rows and columns sum to 1.
using DoublyStochasticMatrix = Matrix<Stochastic::doubly>;
/// A matrix with W = W^T, so that rows and columns sum to 1.
using SymmetricMatrix = Matrix<Stochastic::symmetric>;

}  // namespace terse::graph
