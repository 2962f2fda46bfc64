// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/error.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/connectivity.hpp"
#include "terse/graph/settings.hpp"
#include "terse/graph/weights.hpp"

namespace terse::graph {

/// A random graph: each pair of ranks is joined with the given probability. The seed determines the one draw.
/// Metropolis-Hastings weights. The draw for a pair does not depend on the size. Errors: check() throws usage_error
/// for a probability outside [0, 1] and for a draw that is not connected, which is likely below log(size) / size.
/// Cost: O(size * degree) random numbers a row, so keep the row, which never changes. Source: Gilbert, "Random
/// graphs", Ann. Math. Stat. 30 (1959): the model G(n, p).
struct ErdosRenyi {
  double probability = 0.5;  ///< probability that a pair is joined; in [0, 1]
  std::uint64_t seed = 0;    ///< seed of the graph

  static constexpr bool fixed = true, symmetric = true, doubly_stochastic = true, regular = false;

  void check(int size) const {
    check_size(size);
    if (!(probability >= 0 && probability <= 1))
      throw usage_error("the probability of an edge is in [0, 1], not " + std::to_string(probability));
    if (const int rank = unreached(*this, size, 0); rank >= 0)
      throw usage_error("this random graph of " + std::to_string(size) + " ranks with edge probability " +
                        std::to_string(probability) + " and seed " + std::to_string(seed) +
                        " is not connected: no path leads from rank 0 to rank " + std::to_string(rank) +
                        ". Take another seed or a higher probability");
  }

  /// Checks whether `from` sends to `to`, as an Adjacency does.
  bool sends(int from, int to, int, std::uint64_t) const {
    const auto low = static_cast<std::uint64_t>(std::min(from, to));
    const auto high = static_cast<std::uint64_t>(std::max(from, to));
    const std::uint64_t bits = Draw::shared(seed, 0, Purpose::matching).bits(high * (high - 1) / 2 + low);
    return static_cast<double>(bits >> 11) * 0x1p-53 < probability;
  }

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    metropolis_hastings_row(*this, rank, size, round, edges);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    out_neighbors(*this, rank, size, round, peers);
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    visit("probability", probability);
    visit_bits("seed", seed, visit);
  }
};

}  // namespace terse::graph
