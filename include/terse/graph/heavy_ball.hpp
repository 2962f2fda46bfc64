// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/spectrum.hpp"
#include "terse/graph/stochastic.hpp"

// The effect of momentum on consensus. With zero gradients, DecentLaM and related methods run
//
//     x(k + 1) = W(k) x(k) + beta (x(k) - x(k - 1))
//
// An eigenvalue lambda of a fixed W contributes the roots of z^2 - (lambda + beta) z + beta. For real lambda in (-1, 1)
// they lie inside the unit circle for every beta < 1; for complex lambda they may not. A changing W has no such roots:
// even symmetric rounds may grow in their product.

namespace terse::graph {

/// Returns the spectral radius of that recursion for a fixed W, restricted to the differences between ranks: below 1
/// they vanish. Throws usage_error unless rows sum to 1. Cost: 49 products of 2n x 2n matrices. Accuracy: 1e-12, or
/// 1e-7 if the two roots of the leading eigenvalue are equal.
inline double heavy_ball_consensus_radius(const std::vector<double>& matrix, double beta) {
  const int order = order_of(matrix);
  check_stochastic(matrix, order, Stochastic::rows);
  const auto n = static_cast<std::size_t>(order);
  // Maps (x(k), x(k - 1)) to (x(k + 1), x(k)), after P = I - J has removed the common part of all ranks.
  std::vector<double> companion(4 * n * n, 0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const double common = 1.0 / static_cast<double>(n), rest = (i == j ? 1 : 0) - common;
      companion[i * 2 * n + j] = matrix[i * n + j] - common + beta * rest;
      companion[i * 2 * n + n + j] = -beta * rest;
      companion[(n + i) * 2 * n + j] = rest;
    }
  return detail::spectral_radius(std::move(companion), 2 * n);
}

/// Returns the growth per step of that recursion over the graph's rounds 0 ... rounds - 1. It is the spectral radius
/// of the map over all of them, to the power 1 / rounds. For a graph with a period, rounds = one period gives the
/// exact rate. (So does a multiple, but long runs only up to rounding.) For random graphs the rate is an estimate
/// whose error falls as 1 / sqrt(rounds), to about 0.003 at 4000 rounds of a matching of 8. Cost: O(rounds * (edges +
/// n) * n). Throws usage_error if rounds < 1, and the errors of the graph's check().
template <Graph G>
double heavy_ball_growth(const G& graph, int size, double beta, std::uint64_t rounds) {
  graph.check(size);
  if (rounds < 1) throw usage_error("growth is measured over at least one round");
  const auto n = static_cast<std::size_t>(size), width = 2 * n;
  // The recursion from all 2n starts at once, with one column for each. `state` has x(k) above x(k - 1).
  std::vector<double> state(width * width, 0), mixed(n * width);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const double rest = (i == j ? 1 : 0) - 1.0 / static_cast<double>(n);
      state[i * width + j] = state[(n + i) * width + n + j] = rest;
    }
  std::vector<Edge> edges;
  edges.reserve(n);
  double logarithm = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < n; ++i) {
      graph.row(static_cast<int>(i), size, round, edges);
      double own = 1 + beta;
      for (const Edge& edge : edges) own -= edge.weight;
      double* const to = &mixed[i * width];
      for (std::size_t c = 0; c < width; ++c)
        to[c] = own * state[i * width + c] - beta * state[(n + i) * width + c];
      for (const Edge& edge : edges) {
        const double* const from = &state[static_cast<std::size_t>(edge.peer) * width];
        for (std::size_t c = 0; c < width; ++c) to[c] += edge.weight * from[c];
      }
    }
    // Rounding leaves a remainder of consensus, which does not decay and would hide the decaying part.
    for (std::size_t c = 0; c < width; ++c) {
      double mean = 0;
      for (std::size_t i = 0; i < n; ++i) mean += mixed[i * width + c] / static_cast<double>(n);
      for (std::size_t i = 0; i < n; ++i) mixed[i * width + c] -= mean;
    }
    for (std::size_t k = 0; k < n * width; ++k) {
      state[n * width + k] = state[k];
      state[k] = mixed[k];
    }
    const double norm = detail::normalize(state);
    if (norm <= 0) return 0;
    logarithm += std::log(norm);
  }
  const double radius = detail::spectral_radius(std::move(state), width);
  return radius <= 0 ? 0 : std::exp((logarithm + std::log(radius)) / static_cast<double>(rounds));
}

}  // namespace terse::graph
