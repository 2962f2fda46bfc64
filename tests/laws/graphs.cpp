// SPDX-License-Identifier: Apache-2.0

// The library's graphs keep the laws of graphs, and each law finds what breaks it.

#include <doctest/doctest.h>

#include "archetypes.hpp"
#include "terse/graph/graphs.hpp"
#include "terse/laws/graph.hpp"

namespace {

using namespace terse;

template <class G>
laws::Report holds(const G& graph = {}) {
  const laws::Report report = laws::check_graph(graph);
  CHECK_MESSAGE(report, report.text());
  CHECK(report.passed.size() + report.not_applicable.size() == 11);
  return report;
}

enum class Fault {
  none,
  size,
  nowhere,
  order,
  negative,
  heavy,
  receivers,
  appends,
  impure,
  fixed,
  symmetric,
  doubly_stochastic,
  regular,
  spectrum,
  neighbours
};

/// A ring with a fault.
template <Fault F>
struct Broken {
  static constexpr bool fixed = true, symmetric = true, doubly_stochastic = true, regular = true;
  static constexpr bool spectrum_above_minus_third = F == Fault::spectrum;
  mutable int asked = 0;

  void check(int size) const {
    if ((size < 1 && F != Fault::size) || F == Fault::nowhere) throw usage_error("no ring");
  }
  void row(int rank, int size, std::uint64_t round, std::vector<graph::Edge>& edges) const {
    if (F != Fault::appends) edges.clear();
    if (size < 3) return;
    const int before = (rank + size - 1) % size, behind = (rank + 1) % size;
    double weight = F == Fault::spectrum ? 0.45 : F == Fault::heavy ? 0.6 : 0.25;
    if (F == Fault::negative && rank == 2) weight = -0.25;
    if (F == Fault::fixed && round > 4) weight = 0.2;
    if (F == Fault::impure) weight /= 1 + ++asked % 2;
    if (F == Fault::regular && rank + behind == 2 * size - 3) return;
    const double forward =
        F == Fault::symmetric || (F == Fault::doubly_stochastic && rank == 1) ? 0.3 : weight;
    edges.push_back({before, weight});
    edges.push_back({behind, forward});
    if ((edges[0].peer > edges[1].peer) != (F == Fault::order)) std::swap(edges[0], edges[1]);
  }
  void receivers(int rank, int size, std::uint64_t, std::vector<int>& peers) const {
    peers.clear();
    if (size < 3) return;
    const int before = (rank + size - 1) % size, behind = (rank + 1) % size;
    peers.push_back(std::min(before, behind));
    if (F != Fault::receivers) peers.push_back(std::max(before, behind));
  }
  int most_neighbors(int) const { return F == Fault::neighbours ? 1 : 2; }
};

/// Push-sum weights that grow.
struct Growing : graph::PushSum<graph::OnePeerExponential> {
  double weight(int rank, int size, std::uint64_t round) const {
    const double right = graph::PushSum<graph::OnePeerExponential>::weight(rank, size, round);
    return round > 3 && rank == 0 ? right * 1.01 : right;
  }
};

template <Fault F>
void breaks(const char* law) {
  const laws::Report report = laws::check_graph<Broken<F>>();
  CHECK_MESSAGE(report.broke(law), report.text());
}

}  // namespace

TEST_CASE("the library's graphs keep the laws") {
  holds<graph::Ring>();
  holds<graph::Mesh>();
  holds<graph::Torus>();
  holds<graph::Star>();
  holds<graph::Complete>();
  holds<graph::Hypercube>();
  holds<graph::DirectedExponential>();
  holds<graph::SymmetricExponential>();
  holds<graph::OnePeerExponential>();
  holds<graph::OnePeerHypercube>();
  holds<graph::Lazy<graph::Ring>>();
  holds<archetype::Graph>();
  holds<Broken<Fault::none>>();
  const laws::Report report = holds<graph::PushSum<graph::OnePeerExponential>>();
  CHECK(std::find(report.passed.begin(), report.passed.end(), "push-sum") != report.passed.end());
}

TEST_CASE("laws find what breaks them") {
  breaks<Fault::size>("sizes");
  breaks<Fault::nowhere>("sizes");
  breaks<Fault::order>("rows");
  breaks<Fault::negative>("rows");
  breaks<Fault::heavy>("rows");
  breaks<Fault::appends>("rows");
  breaks<Fault::receivers>("receivers");
  breaks<Fault::impure>("pure");
  breaks<Fault::fixed>("fixed");
  breaks<Fault::symmetric>("symmetric");
  breaks<Fault::doubly_stochastic>("doubly stochastic");
  breaks<Fault::regular>("regular");
  breaks<Fault::spectrum>("spectrum");
  breaks<Fault::neighbours>("neighbours");
  const laws::Report report = laws::check_graph<Growing>();
  CHECK_MESSAGE(report.broke("push-sum"), report.text());
}
