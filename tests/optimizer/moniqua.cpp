// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "optimizer/support.hpp"
#include "reference/compressed_mixing.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/graph/matrix.hpp"
#include "terse/optimizer/moniqua_sgd.hpp"

// Moniqua and mixing by lattice: against an oracle in double, and where the bound is broken.

using namespace terse;
using namespace terse::test;
using reference::Arenas;

namespace {

using Net = Mixing<graph::DoublyStochasticMatrix>;
template <class C>
using Method = MoniquaSgd<C, Net, MomentumDirection>;

reference::Rows rows_of(int ranks) { return reference::circulant(at(ranks), {0.25, 0.125}); }
Net net_of(const reference::Rows& rows) {
  Net net;
  for (const auto& row : rows) net.graph.weights.insert(net.graph.weights.end(), row.begin(), row.end());
  return net;
}

/// Compressed and not; one with two checksums.
Layout layers() {
  Layout layout;
  layout.add({"a", {65}});
  layout.add({"none", {0}});
  layout.add({"bias", {7}, 2, 0, false});
  layout.add({"one", {1}, 0.5F, 0.5F});
  layout.add({"c", {4097}});
  layout.add({"seven", {9}, 1, 1, false});
  return layout;
}
bool any_one(const Segment&) { return true; }

constexpr std::uint64_t steps = 10;
float wavy(std::uint64_t step) { return 0.02F * (1 + 0.5F * std::sin(static_cast<float>(step))); }
struct Wavy {
  template <class R>
  void operator()(R& recipe, std::uint64_t step) const {
    recipe.learning_rate = wavy(step);
  }
};

Arenas gradients(const Layout& layout, std::size_t ranks, std::uint64_t step) {
  Arenas g;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Floats one = gradient(layout, static_cast<int>(rank), step, 1);
    g.emplace_back(one.begin(), one.end());
  }
  return g;
}

/// The lattice's own step: Moniqua's B / q is 2 bound / (q - 1), and 2^-20 of it.
double step_of(const Moniqua<8>& moniqua) {
  return 2 * static_cast<double>(moniqua.bound) / 255 * (1 + 0x1p-20);
}
double step_of(const Lattice<8>& lattice) { return static_cast<double>(lattice.step); }

template <class C>
void compare(const C& compressor, int ranks) {
  CAPTURE(ranks);
  const Layout layout = layers();
  const Method<C> recipe{.weight_decay = 0.1F,
                         .momentum_correction = {{.momentum = 0.5F}},
                         .topology = net_of(rows_of(ranks)),
                         .compressor = compressor};
  const History ours = run(recipe, layout, ranks, steps, 1, {}, Wavy{});
  reference::Moniqua oracle;
  oracle.layout = layout, oracle.weights = rows_of(ranks);
  oracle.weight_decay = static_cast<double>(recipe.weight_decay), oracle.momentum = 0.5;
  const Floats first = start(layout);
  oracle.x = Arenas(at(ranks), {first.begin(), first.end()});
  oracle.m = Arenas(at(ranks), std::vector<double>(at(layout.size())));
  const double grid = step_of(compressor);
  // A code of 8 bits each, a checksum for each 4096 elements begun.
  const std::uint64_t section = (72 + 8) + (8 + 8) + (4104 + 16), dense = 32 + 40;
  const auto receivers = static_cast<std::uint64_t>(std::min(ranks - 1, 2));
  std::uint64_t doubts = 0, all = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    std::vector<char> doubted(at(layout.size()));
    oracle.learning_rate = static_cast<double>(wavy(step));
    const Arenas before = oracle.x;
    const Arenas g = gradients(layout, at(ranks), step);
    oracle.step(g, [&](std::size_t, int, const auto& values) {
      std::vector<double> read = values;
      for (std::size_t k = 0; k < read.size(); ++k) {
        const double t = values[k] / grid;
        if (std::abs(std::abs(t - std::floor(t)) - 0.5) < 1e-6 * (std::abs(t) + 1)) doubted[k] = 1;
        read[k] = std::nearbyint(t) * grid;
      }
      return read;
    });
    const auto& now = ours[step - 1];
    double worst = 0, drift = 0, apart = 0;
    each(layout, any_one, [&](std::size_t k) {
      double mean = 0, expected = 0;
      for (std::size_t rank = 0; rank < at(ranks); ++rank) {
        const double x = static_cast<double>(now[rank].parameters[k]);
        mean += x / ranks, expected += oracle.x[rank][k] / ranks;
        if (doubted[k] == 0) worst = std::max(worst, std::abs(x - oracle.x[rank][k]));
        apart = std::max(apart, std::abs(x - static_cast<double>(now[0].parameters[k])));
      }
      ++all, doubts += doubted[k] != 0;
      drift = std::max(drift, std::abs(mean - expected));
    });
    CHECK(worst < 5e-7);
    CHECK(drift < 2e-7);  // in doubt or not: all read alike, so that codes keep the mean
    CHECK((ranks == 1 || apart > 8 * grid));
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      CHECK(now[rank].spread == receivers * (32 + section + dense));
      CHECK(now[rank].reduced == 0);
      oracle.x[rank].assign(now[rank].parameters.begin(), now[rank].parameters.end());
      oracle.m[rank] = spread_out(layout, now[rank].state, "momentum");
    }
  }
  CHECK(doubts * 100 <= all);
}

}  // namespace

TEST_CASE("Moniqua follows the oracle, keeps the mean, and sends 8 bits and checksums") {
  for (const int ranks : {1, 2, 3, 7}) compare(Moniqua<8>{.bound = 0.25F}, ranks);
}

TEST_CASE("a lattice does as well") {
  for (const int ranks : {2, 3}) compare(Lattice<8>{.step = 0x1p-9F}, ranks);
}

TEST_CASE("messages that leave before the gradient is known give the same parameters") {
  const Layout layout = layers();
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Method<Moniqua<8>> recipe{
        .learning_rate = 0.02F, .topology = net_of(rows_of(3)), .compressor = {.bound = 0.5F}};
    Optimizer early{recipe, transport, layout}, late{recipe, transport, layout};
    Floats x = start(layout), y = x;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      early.begin(x);
      // What is under way is read as it was sent.
      if (step == 3) early.recipe.compressor.bound = 0.25F;
      if (step == 4) late.recipe.compressor.bound = 0.25F;
      const Floats g = gradient(layout, transport.rank(), step, 1);
      early.step(x, g);
      late.step(y, g);
      CHECK(x == y);
    }
  });
}

TEST_CASE("parameters beyond the bound are an error on the ranks that meet them, and nothing is changed") {
  const Layout layout = layers();
  std::vector<std::string> errors(3);
  // A chain: ranks 0 and 2 never meet.
  const reference::Rows chain = {{0.75, 0.25, 0}, {0.25, 0.5, 0.25}, {0, 0.25, 0.75}};
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const int rank = transport.rank();
    const MoniquaSgd<Moniqua<8>, Net> recipe{
        .learning_rate = 0, .topology = net_of(chain), .compressor = {.bound = 0.25F}};
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    const Floats g(x.size());
    optimizer.step(x, g);
    // The last element of the last compressed segment, so that all else has been read by then.
    const std::size_t last = at(layout.segments()[4].offset + 4096);
    if (rank == 0) x[last] += 0.26F;
    const Floats before = x;
    try {
      optimizer.step(x, g);
    } catch (const wire_error& failure) {
      errors[at(rank)] = failure.what();
      CHECK(x == before);
      CHECK(optimizer.steps() == 1);
    }
  });
  CHECK(errors[0].starts_with("terse: rank 0, step 2: the packet from rank 1 can't be decoded with"));
  CHECK(errors[1].starts_with("terse: rank 1, step 2: the packet from rank 0 can't be decoded with"));
  CHECK(errors[2].empty());
}

TEST_CASE("just within the bound all is well") {
  const Layout layout = Layout::flat(65);
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{
        MoniquaSgd<Moniqua<8>, Net>{
            .learning_rate = 0, .topology = net_of({{0.5, 0.5}, {0.5, 0.5}}), .compressor = {.bound = 0.25F}},
        transport, layout};
    Floats x(at(layout.size()), 3.0F);
    if (transport.rank() == 0) x[64] = 3.25F;
    optimizer.step(x, Floats(x.size()));
    CHECK(std::abs(x[64] - 3.125F) < 0.25F / 255);
    CHECK(x[0] == 3);  // exactly, since all agree
  });
}

TEST_CASE("parameters that are not finite are noticed by those that hear of them") {
  const Layout layout = layers();
  std::vector<int> culprits(3, -1);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Method<Moniqua<8>>{.topology = net_of(rows_of(3))}, transport, layout};
    Floats x = start(layout);
    if (transport.rank() == 1) x[2] = std::numeric_limits<float>::quiet_NaN();
    try {
      optimizer.step(x, Floats(x.size()));
    } catch (const non_finite_error& failure) {
      culprits[at(transport.rank())] = failure.culprit();
    }
  });
  CHECK(culprits == std::vector<int>{1, 1, 1});
}

TEST_CASE("other hyper-parameters are refused") {
  const Layout layout = layers();
  std::vector<std::string> errors(2);
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Method<Moniqua<8>>{.topology = net_of(rows_of(2))}, transport, layout};
    Floats x = start(layout);
    if (transport.rank() == 1) optimizer.recipe.compressor.bound = 2;
    try {
      optimizer.step(x, Floats(x.size()));
    } catch (const wire_error& failure) {
      errors[at(transport.rank())] = failure.what();
    }
  });
  CHECK(errors[0].find("other hyper-parameters") != std::string::npos);
  CHECK(errors[1].find("other hyper-parameters") != std::string::npos);
}
