// SPDX-License-Identifier: Apache-2.0
#include "graphs.hpp"

namespace bias {

namespace graph = terse::graph;

void NamedGraph::check(int ranks) const {
  std::visit([&](const auto& one) { one.check(ranks); }, graph);
}

std::optional<std::vector<double>> NamedGraph::matrix(int ranks) const {
  const auto of_one = [&]<class G>(const G& one) -> std::optional<std::vector<double>> {
    if constexpr (G::fixed) return graph::matrix_of(one, ranks, 0);
    return std::nullopt;
  };
  return std::visit([&](const auto& family) { return std::visit(of_one, family.graph); }, graph);
}

std::vector<NamedGraph> named_graphs(std::uint64_t seed) {
  return {{"mesh", FixedSymmetric{graph::Mesh{}}},
          {"ring", FixedSymmetric{graph::Ring{}}},
          {"star", FixedSymmetric{graph::Star{}}},
          {"torus", FixedSymmetric{graph::Torus{}}},
          {"hypercube", FixedSymmetric{graph::Hypercube{}}},
          {"symmetric-exponential", FixedSymmetric{graph::SymmetricExponential{}}},
          {"complete", FixedSymmetric{graph::Complete{}}},
          {"directed-exponential", Varying{graph::DirectedExponential{}}},
          {"one-peer-exponential", Varying{graph::OnePeerExponential{}}},
          {"one-peer-hypercube", Varying{graph::OnePeerHypercube{}}},
          {"random-matching", Varying{graph::RandomMatching{seed}}}};
}

NamedGraph two_node_graph() {
  return {"two-node", FixedSymmetric{graph::SymmetricMatrix{{0.75, 0.25, 0.25, 0.75}}}};
}

}  // namespace bias
