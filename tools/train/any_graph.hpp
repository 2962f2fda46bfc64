// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "options.hpp"
#include "terse/graph/named.hpp"
#include "terse/graph/random_matching.hpp"

namespace train {

/// Any of the graphs behind one type, so that each decentralized optimizer is compiled once. What it promises is what
/// the optimizer asks for; a graph that could promise more may be held by a type that promises less.
template <bool Fixed, bool Symmetric>
class AnyGraph {
  using Held =
      std::variant<terse::graph::Ring, terse::graph::Mesh, terse::graph::Torus, terse::graph::Star,
                   terse::graph::Complete, terse::graph::Hypercube, terse::graph::DirectedExponential,
                   terse::graph::SymmetricExponential, terse::graph::OnePeerExponential,
                   terse::graph::OnePeerHypercube, terse::graph::RandomMatching>;

 public:
  static constexpr bool fixed = Fixed, symmetric = Symmetric, doubly_stochastic = true, regular = false;

  AnyGraph() = default;
  /// Random graphs draw from `seed`. Throws std::logic_error where the graph can't promise as much.
  explicit AnyGraph(Graph kind, std::uint64_t seed = 0) : held_(make(kind, seed)) {
    if (!keeps_promises()) throw std::logic_error("a graph does not keep its promises");
  }

  /// Whether the graph itself is fixed, and symmetric.
  bool keeps_promises() const {
    return std::visit(
        []<class G>(const G&) {
          static_assert(G::doubly_stochastic);
          return (G::fixed || !Fixed) && (G::symmetric || !Symmetric);
        },
        held_);
  }
  static bool could_be(Graph kind) {
    AnyGraph graph;
    graph.held_ = make(kind, 0);
    return graph.keeps_promises();
  }

  void check(int size) const {
    std::visit([&](const auto& graph) { graph.check(size); }, held_);
  }
  void row(int rank, int size, std::uint64_t round, std::vector<terse::graph::Edge>& edges) const {
    std::visit([&](const auto& graph) { graph.row(rank, size, round, edges); }, held_);
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    std::visit([&](const auto& graph) { graph.receivers(rank, size, round, peers); }, held_);
  }
  /// As an Adjacency.
  bool sends(int from, int to, int size, std::uint64_t round) const {
    return std::visit([&](const auto& graph) { return graph.sends(from, to, size, round); }, held_);
  }
  /// Room for messages; all graphs here that change have one peer a round.
  int most_neighbors(int size) const {
    const bool changes = std::visit([](const auto& graph) { return !graph.fixed; }, held_);
    if (changes) return 1;
    std::size_t most = 0;
    std::vector<terse::graph::Edge> edges;
    for (int rank = 0; rank < size; ++rank) {
      row(rank, size, 0, edges);
      most = std::max(most, edges.size());
    }
    return static_cast<int>(most);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("graph", static_cast<double>(held_.index()));
    std::visit([&](const auto& graph) { terse::graph::visit_settings(graph, visit); }, held_);
  }

 private:
  static Held make(Graph kind, std::uint64_t seed) {
    switch (kind) {
      case Graph::ring:
        return terse::graph::Ring{};
      case Graph::mesh:
        return terse::graph::Mesh{};
      case Graph::torus:
        return terse::graph::Torus{};
      case Graph::star:
        return terse::graph::Star{};
      case Graph::complete:
        return terse::graph::Complete{};
      case Graph::hypercube:
        return terse::graph::Hypercube{};
      case Graph::exponential:
        return terse::graph::DirectedExponential{};
      case Graph::one_peer_exponential:
        return terse::graph::OnePeerExponential{};
      case Graph::one_peer_hypercube:
        return terse::graph::OnePeerHypercube{};
      case Graph::random_matching:
        return terse::graph::RandomMatching{seed};
      case Graph::symmetric_exponential:
        break;
    }
    return terse::graph::SymmetricExponential{};
  }

  // Before a graph is chosen, one that keeps all promises.
  Held held_ = terse::graph::SymmetricExponential{};
};

/// What optimizers are compiled for, by what they need of a graph.
using KeepsMean = AnyGraph<false, false>;
using Fixed = AnyGraph<true, false>;
using FixedSymmetric = AnyGraph<true, true>;
/// With push-sum weights that stay 1: all but mesh and star, see could_be_even.
struct Even : KeepsMean {
  static constexpr bool regular = true;
  Even(KeepsMean graph = {}) : KeepsMean(std::move(graph)) {}
};
inline bool could_be_even(Graph kind) { return kind != Graph::mesh && kind != Graph::star; }

inline bool satisfies(Graph graph, GraphNeeds needs) {
  switch (needs) {
    case GraphNeeds::fixed:
      return Fixed::could_be(graph);
    case GraphNeeds::fixed_symmetric:
      return FixedSymmetric::could_be(graph);
    case GraphNeeds::even:
      return could_be_even(graph);
    case GraphNeeds::nothing:
      break;
  }
  return true;
}

}  // namespace train
