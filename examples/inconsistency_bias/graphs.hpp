// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "terse/graph/graphs.hpp"

namespace bias {

/// One of several graphs, chosen at run time, with the flags that all of them have. A program that knows its
/// graph writes terse::Mixing<terse::graph::Ring>; this one compares many, and compiles each method for two
/// families instead of eleven graphs.
template <bool fixed_symmetric, terse::graph::Graph... Graphs>
struct OneOf {
  static constexpr bool fixed = fixed_symmetric, symmetric = fixed_symmetric;
  static constexpr bool doubly_stochastic = (Graphs::doubly_stochastic && ...);
  static constexpr bool regular = (Graphs::regular && ...);
  static_assert(!fixed_symmetric || ((Graphs::fixed && Graphs::symmetric) && ...));

  std::variant<Graphs...> graph;

  void check(int size) const {
    std::visit([&](const auto& one) { one.check(size); }, graph);
  }
  void row(int rank, int size, std::uint64_t round, std::vector<terse::graph::Edge>& edges) const {
    std::visit([&](const auto& one) { one.row(rank, size, round, edges); }, graph);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    std::visit([&](const auto& one) { one.receivers(rank, size, round, peers); }, graph);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("graph", static_cast<double>(graph.index()));
    std::visit([&](const auto& one) { terse::graph::visit_settings(one, visit); }, graph);
  }
};

/// What heavy ball methods such as DecentLaM need.
using FixedSymmetric = OneOf<true, terse::graph::SymmetricMatrix, terse::graph::Ring, terse::graph::Mesh,
                             terse::graph::Torus, terse::graph::Star, terse::graph::Complete,
                             terse::graph::Hypercube, terse::graph::SymmetricExponential>;
/// Directed, or other neighbours in every round.
using Varying = OneOf<false, terse::graph::DirectedExponential, terse::graph::OnePeerExponential,
                      terse::graph::OnePeerHypercube, terse::graph::RandomMatching>;

/// A graph by its name on the command line.
struct NamedGraph {
  std::string name;
  std::variant<FixedSymmetric, Varying> graph;

  /// Throws terse::usage_error where it can't have so many ranks.
  void check(int ranks) const;
  /// W, row by row, where it is the same in all rounds.
  std::optional<std::vector<double>> matrix(int ranks) const;
};

/// All graphs for the regression; the seed is for random matchings.
std::vector<NamedGraph> named_graphs(std::uint64_t seed);

/// W = [[3/4, 1/4], [1/4, 3/4]], whose second eigenvalue is 1/2.
NamedGraph two_node_graph();

}  // namespace bias
