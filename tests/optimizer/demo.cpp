// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "reference/demo.hpp"
#include "restarts.hpp"
#include "support.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/distributed_lion.hpp"

// DeMo and Distributed Lion against oracles in double from the papers, and what follows from their formulas.

using namespace terse;
using namespace terse::test;

namespace {

constexpr std::uint64_t steps = 25, loud_from = 10;

Layout layers() {
  Layout layout;
  layout.add({"matrix", {20, 37}}).add({"none", {0}}).add({"vector", {300}, 0.5F});
  layout.add({"bias", {65}, 2, 0, false}).add({"filter", {6, 2, 3, 3}}).add({"one", {1}});
  return layout;
}
float wavy(std::uint64_t step) { return 1e-2F * (1 + 0.5F * std::sin(static_cast<float>(step))); }
struct Wavy {
  template <class R>
  void operator()(R& recipe, std::uint64_t step) const {
    recipe.learning_rate = wavy(step);
  }
};
bool any_one(const Segment&) { return true; }
bool compressed_one(const Segment& segment) { return segment.compress; }

std::vector<Floats> gradients(const Layout& layout, int ranks, std::uint64_t step) {
  std::vector<Floats> g;
  for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, loud_from));
  return g;
}
reference::Doubles doubles(const Floats& x) { return {x.begin(), x.end()}; }

/// Steps that hang on a rounding are not compared; the oracle goes on from where the recipe is. `with_rate`: its memory has
/// been multiplied by the rate.
template <class R, class Oracle>
void follows(const R& recipe, const Layout& layout, int ranks, Oracle oracle, const char* memory,
             bool with_rate = false) {
  CAPTURE(ranks);
  CAPTURE(with_rate);
  const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Wavy{});
  oracle.parameters = doubles(start(layout));
  oracle.momentum.assign(at(ranks), reference::Doubles(at(layout.size())));
  std::uint64_t compared = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    oracle.step(gradients(layout, ranks, step), static_cast<double>(wavy(step)));
    for (const Snapshot& rank : now) REQUIRE(rank.parameters == now[0].parameters);
    const auto memory_of = [&](std::size_t rank) {
      reference::Doubles kept = spread_out(layout, now[rank].state, memory);
      if (with_rate)
        for (double& value : kept) value *= static_cast<double>(wavy(step));
      return kept;
    };
    if (oracle.doubted) {
      oracle.parameters = doubles(now[0].parameters);
      for (std::size_t rank = 0; rank < now.size(); ++rank) oracle.momentum[rank] = memory_of(rank);
      continue;
    }
    ++compared;
    REQUIRE(relative_error(layout, now[0].parameters, oracle.parameters, any_one) < 1e-5);
    for (std::size_t rank = 0; rank < now.size(); ++rank)
      REQUIRE(relative_error(layout, memory_of(rank), oracle.momentum[rank], compressed_one) < 2e-5);
  }
  MESSAGE("compared " << compared << " of " << steps << " steps");
  CHECK(compared * 2 > steps);
}

// Of a tile with one or two coefficients elements may be 0 but for rounding, whose sign is a step: such steps are many.
TEST_CASE("DeMo is its paper's, and with errors that follow the rate its authors' code") {
  const Layout layout = layers();
  for (const int ranks : {1, 3})
    for (const bool with_rate : {false, true}) {
      const DeMo<Dct<16>> recipe{.weight_decay = 0.1F,
                                 .decay = 0.9F,
                                 .compressor = {.inner = {.selection = {.ratio = 0.1}}},
                                 .error_feedback = {.follows_rate = with_rate}};
      const reference::DeMo oracle{layout,    16, 0.1, static_cast<double>(0.9F), static_cast<double>(0.1F),
                                   with_rate, {}, {}};
      follows(recipe, layout, ranks, oracle, "error", with_rate);
    }
}

TEST_CASE("rates that jump don't throw off DeMo's momentum, follow it or not") {
  for (const bool follows : {false, true})
    check_jumps(DeMo<Dct<16>>{.compressor = {.inner = {.selection = {.ratio = 0.1}}},
                              .error_feedback = {.follows_rate = follows}},
                0.01);
}

TEST_CASE("DeMo over the senders of a coefficient is its authors' code, and takes other steps") {
  const Layout layout = layers();
  const DeMo<MeanOverSenders<Dct<16>>> recipe{
      .weight_decay = 0.1F, .decay = 0.9F, .compressor = {{.inner = {.selection = {.ratio = 0.1}}}}};
  for (const int ranks : {1, 3}) {
    reference::DeMo oracle{layout, 16, 0.1, static_cast<double>(0.9F), static_cast<double>(0.1F),
                           false,  {}, {}};
    oracle.over_senders = true;
    follows(recipe, layout, ranks, oracle, "error");
  }
}

TEST_CASE("DeMo that sends all is signSGD of the mean gradient, without a memory") {
  const Layout layout = layers();
  const auto dense = run(Averaging<SignStep>{}, layout, 3, steps, 1, {}, Wavy{});
  const auto elements = run(DeMo<Tiles<16>>{.compressor = {.inner = {.selection = {.ratio = 1}}}}, layout, 3,
                            steps, 1, {}, Wavy{});
  const auto waves = run(DeMo<Dct<16>>{.compressor = {.inner = {.selection = {.ratio = 1}}}}, layout, 3,
                         steps, 1, {}, Wavy{});
  for (std::size_t step = 0; step < steps; ++step) {
    REQUIRE(elements[step][0].parameters == dense[step][0].parameters);
    REQUIRE(waves[step][0].parameters == dense[step][0].parameters);
    for (const double error : elements[step][1].state.parts.at("error")) REQUIRE(error == 0);
    for (const double error : waves[step][1].state.parts.at("error")) REQUIRE(std::abs(error) < 1e-5);
  }
}

/// All coefficients sent: what descends along exact means descends along these, to rounding.
template <class C, class T>
void descends_as_dense(const C& compressor) {
  const Layout layout = layers();
  const Options options{.slice_bytes = 2000};
  const History dense = run(Averaging<>{}, layout, 3, steps, 1, {}, Wavy{});
  const History ours =
      run(Averaging<C, Residual, T>{.compressor = compressor}, layout, 3, steps, 1, options, Wavy{});
  for (std::size_t step = 0; step < steps; ++step) {
    for (const Snapshot& rank : ours[step]) REQUIRE(rank.parameters == ours[step][0].parameters);
    REQUIRE(relative_error(layout, ours[step][0].parameters, dense[step][0].parameters, any_one) < 1e-5);
  }
}

TEST_CASE("over topologies that cut packets, in slices, and as a branch") {
  const Dct<16> all{.inner = {.selection = {.ratio = 1}}};
  descends_as_dense<Dct<16>, AllGather>(all);
  descends_as_dense<Dct<16>, ScatterGather>(all);
  descends_as_dense<Dct<16>, Ring>(all);
  descends_as_dense<Dct<16>, Star>(all);
  Select<Where<IsMatrix, Dct<16>>, Otherwise<Tiles<16>>> branches;
  branches.branch<0>().compressor = all;
  branches.branch<1>().compressor.inner.selection.ratio = 1;
  descends_as_dense<decltype(branches), AllGather>(branches);
}

TEST_CASE("Distributed Lion is its paper's, by votes and by their mean") {
  const Layout layout = layers();
  const auto oracle = [&](bool vote) {
    return reference::DistributedLion{
        layout, vote, static_cast<double>(0.9F), static_cast<double>(0.99F), static_cast<double>(0.1F),
        {},     {}};
  };
  for (const int ranks : {1, 2, 4}) {
    follows(DistributedLion<>{.weight_decay = 0.1F}, layout, ranks, oracle(true), "momentum");
    follows(DistributedLion<AllGather>{.weight_decay = 0.1F}, layout, ranks, oracle(true), "momentum");
    follows(AveragedLion<>{.weight_decay = 0.1F}, layout, ranks, oracle(false), "momentum");
  }
}

TEST_CASE("ranks that say the same make Lion's steps, to the bit") {
  const Layout layout = layers();
  const auto steps_of = [&](const auto& recipe, int ranks) {
    std::vector<Floats> history(at(ranks), start(layout));
    ThreadGroup(ranks).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats& x = history[at(transport.rank())];
      for (std::uint64_t step = 1; step <= steps; ++step)
        optimizer.step(x, gradient(layout, 0, step, loud_from));
    });
    for (const Floats& x : history) CHECK(x == history[0]);
    return history[0];
  };
  const Floats lion = steps_of(Lion<>{.weight_decay = 0.1F}, 1);
  for (const int ranks : {1, 3, 4}) {
    CHECK(steps_of(DistributedLion<>{.weight_decay = 0.1F}, ranks) == lion);
    CHECK(steps_of(AveragedLion<>{.weight_decay = 0.1F}, ranks) == lion);
  }
}

TEST_CASE("a tie is no step where it is 0, and what has no gradient stays where it is") {
  Layout layout;
  layout.add({"x", {200}});
  const auto moved = [&](const auto& recipe) {
    std::vector<Floats> x(2, Floats(at(layout.size())));
    ThreadGroup(2).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats g(at(layout.size()));
      // Both for, both against, one each, one alone, nobody.
      for (std::size_t i = 0; i < 200; ++i) {
        const float opinion[5][2] = {{1, 1}, {-1, -1}, {1, -1}, {0, 1}, {0, 0}};
        g[i] = opinion[i % 5][at(transport.rank())];
      }
      optimizer.step(x[at(transport.rank())], g);
    });
    CHECK(x[0] == x[1]);
    return std::vector<float>(x[0].begin() + 100, x[0].begin() + 105);
  };
  using F = std::vector<float>;
  CHECK(moved(DistributedLion<>{.learning_rate = 1}) == F{-1, 1, 0, -1, 0});
  CHECK(moved(AveragedLion<>{.learning_rate = 1}) == F{-1, 1, 0, -0.5F, 0});
  CHECK(moved(Averaging<Votes<Tie::zero>, Unchecked<UnitTernary>, NoErrorFeedback>{.learning_rate = 1}) ==
        F{-1, 1, 0, -1, 0});
  CHECK(moved(SignSgd<>{.learning_rate = 1}) == F{-1, 1, -1, -1, -1});
}

TEST_CASE("bytes") {
  Layout layout;
  layout.add({"x", {64, 128}});
  const History votes = run(DistributedLion<>{}, layout, 2, 1, 1, {}, Unchanged{});
  CHECK(sent_in(votes[0][0]) == Sent{32 + 64 * 64 / 4, 32 + 64 * 64 / 4});
  // Two tiles of 32 positions of 12 bits and 32 floats each.
  const History waves = run(DeMo<>{}, layout, 3, 1, 1, {}, Unchanged{});
  CHECK(sent_in(waves[0][0]) == Sent{0, 2 * (32 + 2 * (48 + 128))});
}

}  // namespace
