// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "mixing_support.hpp"
#include "terse/graph/named.hpp"
#include "terse/topology/machine_mixing.hpp"

// Mixing between machines: that of the matrix with W / L in each block, by fewer bytes between machines.

using namespace terse;
using namespace terse::test;

namespace {

struct Trace {
  Floats parameters;
  std::uint64_t inside = 0, between = 0;  // bytes of the last step
};

template <class R>
std::vector<Trace> run_on(const R& recipe, int ranks, int steps) {
  std::vector<Trace> traces(at(ranks));
  const Layout layout = odd_sizes();
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout};
    Trace& mine = traces[at(transport.rank())];
    mine.parameters = start(layout);
    for (int step = 0; step < steps; ++step) {
      const Traffic before = transport.traffic();
      Floats g = mine.parameters;
      for (std::size_t i = 0; i < g.size(); ++i)
        g[i] -= noise(7, transport.rank(), 0, static_cast<index_t>(i));
      optimizer.step(mine.parameters, g);
      mine.inside = transport.traffic()[Phase::reduce].bytes_sent - before[Phase::reduce].bytes_sent;
      mine.between = transport.traffic()[Phase::spread].bytes_sent - before[Phase::spread].bytes_sent;
    }
  });
  return traces;
}

/// W of `machines` machines in a ring, over all ranks.
Given whole_matrix(int machines, int local) {
  const graph::Ring ring;
  std::vector<double> weights;
  std::vector<graph::Edge> edges;
  for (int i = 0; i < machines * local; ++i) {
    std::vector<double> row(at(machines), 0);
    ring.row(i / local, machines, 0, edges);
    row[at(i / local)] = 1;
    for (const graph::Edge& edge : edges) {
      row[at(edge.peer)] = edge.weight;
      row[at(i / local)] -= edge.weight;
    }
    for (int j = 0; j < machines * local; ++j) weights.push_back(row[at(j / local)] / local);
  }
  return {{weights}};
}

template <template <class> class R>
void compare(int machines, int local) {
  CAPTURE(machines);
  CAPTURE(local);
  constexpr int steps = 20;
  const auto ours = run_on(R<MachineMixing<graph::Ring>>{.learning_rate = 0.05F, .topology = {{}, local}},
                           machines * local, steps);
  const auto plain = run_on(R<Given>{.learning_rate = 0.05F, .topology = whole_matrix(machines, local)},
                            machines * local, steps);
  for (std::size_t rank = 0; rank < ours.size(); ++rank)
    for (std::size_t i = 0; i < ours[rank].parameters.size(); ++i)
      REQUIRE(ours[rank].parameters[i] == doctest::Approx(plain[rank].parameters[i]).epsilon(1e-5));
}

template <class P>
using Lam = DecentLaM<P>;
template <class P>
using Tracking = GradientTracking<P>;

}  // namespace

TEST_CASE("machines mix their means as the whole matrix would") {
  compare<Lam>(4, 2);
  compare<Lam>(2, 3);
  compare<Lam>(1, 4);
  compare<Lam>(5, 1);
  compare<Tracking>(3, 2);
}

TEST_CASE("between machines each rank sends its part, as often as its machine has neighbours") {
  const Layout layout = odd_sizes();
  const Range all = layout.range();
  constexpr int local = 2, machines = 4;
  const auto traces =
      run_on(GradientTracking<MachineMixing<graph::Ring>>{.learning_rate = 0.05F, .topology = {{}, local}},
             local * machines, 3);
  const std::vector<Range> parts = all.cut(local);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const auto mine = rank % local, other = 1 - mine;
    const auto packets = [&](std::size_t part) {
      return static_cast<std::uint64_t>(2 * (32 + Dense{}.wire_bytes(parts[part])));
    };
    CHECK(traces[rank].between == 2 * packets(mine));
    // The other's part on the way in, the own one on the way out.
    CHECK(traces[rank].inside == packets(other) + packets(mine));
  }
}

TEST_CASE("machines must be full, and there is no compressed form") {
  std::string said;
  ThreadGroup(3, std::chrono::seconds(5)).run([&](Threads& transport) {
    try {
      Optimizer optimizer{Lam<MachineMixing<graph::Ring>>{.topology = {{}, 2}}, transport, odd_sizes()};
    } catch (const usage_error& fault) {
      if (transport.rank() == 0) said = fault.what();
    }
  });
  CHECK(said.find("3 ranks can't fill machines of 2 each") != std::string::npos);
}

TEST_CASE("D2 stays between machines, lazily") {
  const auto traces =
      run_on(D2<MachineMixing<graph::Ring>>{.learning_rate = 0.2F, .topology = {{}, 2}}, 8, 600);
  const Layout layout = odd_sizes();
  for (std::size_t i = 0; i < traces[0].parameters.size(); ++i) {
    const auto index = static_cast<index_t>(i);
    double mean = 0;
    for (int rank = 0; rank < 8; ++rank) mean += static_cast<double>(noise(7, rank, 0, index)) / 8;
    for (const Segment& segment : layout.segments())
      if (segment.learning_rate_scale > 0 && index >= segment.offset &&
          index < segment.offset + segment.count)
        CHECK(static_cast<double>(traces[3].parameters[i]) == doctest::Approx(mean).epsilon(1e-4).scale(1));
  }
  CHECK(traces[0].inside > 0);
}
