// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "local_training.hpp"
#include "reference/distro.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/local/distro.hpp"

// DisTrO against an oracle in double, and what it is equal to.

using namespace terse;
using namespace terse::test;

namespace {

using Signs =
    DisTrO<MeanOverSenders<Dct<16, Sparse<Largest, DropQuantizationError<UnitTernary>, PerSegment>>>>;
using Values = DisTrO<Dct<16>>;

/// Fits the quadratics.
Layout matrices() {
  Layout layout;
  layout.add({"matrix", {20, 37}}).add({"none", {0}}).add({"vector", {300}, 0.5F});
  layout.add({"bias", {65}, 2, 0, false}).add({"one", {1}});
  return layout;
}

/// Trains, and compares with the oracle. What hung on a rounding may have come out either way, and the oracle goes on from there.
template <class R>
void follows_oracle(R recipe, int ranks, bool values) {
  CAPTURE(ranks);
  const Layout layout = matrices();
  const History ours = train(recipe, ranks, {up_and_down, layout});
  const Floats from = start(layout);
  reference::DisTrO oracle(layout, at(ranks), {from.begin(), from.end()});
  oracle.side = 16;
  oracle.share = 0.1;
  oracle.beta = in_double(recipe.decay);
  oracle.lambda = in_double(recipe.weight_decay);
  oracle.values = values;
  std::uint64_t compared = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    const double gamma = in_double(up_and_down(step));
    const reference::Doubles before = oracle.x;
    oracle.step(Quadratics::gradient<double>, gamma);
    REQUIRE(all_alike(now, "anchor"));
    const std::vector<double>& anchor = now[0].state.parts.at("anchor");
    /// Takes over signs that hung on a rounding, which are one of three.
    const auto settle = [&](const Segment& segment, double& expected, double found, double base) {
      const double rate = gamma * in_double(segment.learning_rate_scale);
      for (const double sign : {-1.0, 0.0, 1.0})
        if (std::abs(base - rate * sign - found) < tolerance) expected = found;
    };
    for (const Segment& segment : layout.segments())
      for (std::size_t i = at(segment.offset); i < at(segment.offset + segment.count); ++i) {
        const double rate = gamma * in_double(segment.learning_rate_scale);
        const double kept = before[i] * (1 - rate * oracle.lambda * in_double(segment.weight_decay));
        if (oracle.mean_doubted[i]) settle(segment, oracle.x[i], anchor[i], kept);
        for (std::size_t rank = 0; rank < now.size(); ++rank)
          if (oracle.ahead_doubted[rank][i])
            settle(segment, oracle.at[rank][i], in_double(now[rank].parameters[i]), kept);
      }
    if (oracle.doubted) {
      oracle.x = anchor;
      for (std::size_t rank = 0; rank < now.size(); ++rank) {
        oracle.at[rank].assign(now[rank].parameters.begin(), now[rank].parameters.end());
        for (std::size_t i = 0; i < anchor.size(); ++i) {
          oracle.e[rank][i] = -now[rank].state.parts.at("unsent")[i] / oracle.beta;
          oracle.q[rank][i] = 0;
        }
      }
      continue;
    }
    ++compared;
    REQUIRE(relative_error(layout, anchor, oracle.x, any_one, 1) < tolerance);
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      REQUIRE(relative_error(layout, now[rank].parameters, oracle.at[rank], any_one, 1) < tolerance);
      std::vector<double> unsent(anchor.size());
      for (std::size_t i = 0; i < unsent.size(); ++i)
        unsent[i] = -oracle.beta * (oracle.e[rank][i] - oracle.q[rank][i]);
      REQUIRE(relative_error(layout, now[rank].state.parts.at("unsent"), unsent, any_one, gamma) < 1e-4);
    }
  }
  MESSAGE("compared " << compared << " of " << steps << " steps");
  CHECK(compared * 4 > steps * 3);
  // Looking completes rounds early, and changes nothing.
  CHECK(gap(ours, train(recipe, ranks, {up_and_down, layout, steps, false}), layout) == 0);
}

Signs signs() {
  return {.weight_decay = 0.1F, .decay = 0.9F, .compressor = {{.inner = {.selection = {.ratio = 0.1}}}}};
}

/// The same without weight decay.
Signs signs_alone() {
  Signs recipe = signs();
  recipe.weight_decay = 0;
  return recipe;
}

TEST_CASE("DisTrO is what is deployed, by signs over the senders of a wave") {
  for (const int ranks : {1, 2, 3}) follows_oracle(signs(), ranks, false);
}

TEST_CASE("and the same by values over all ranks") {
  follows_oracle(
      Values{.weight_decay = 0.1F, .decay = 0.9F, .compressor = {.inner = {.selection = {.ratio = 0.1}}}}, 3,
      true);
}

constexpr float rate = 0x1p-6F;

TEST_CASE("a rank that is alone and sends all is signSGD: where it looks ahead is where it comes to") {
  const Training training{.rate = up_and_down, .layout = matrices()};
  for (const float weight_decay : {0.0F, 0.5F}) {
    const History ours =
        train(Values{.weight_decay = weight_decay, .compressor = {.inner = {.selection = {.ratio = 1}}}}, 1,
              training);
    const History plain = train(Averaging<SignStep>{.weight_decay = weight_decay}, 1, training);
    // Signs of waves that come to 0 but for rounding differ; there are none among all waves of a gradient.
    CHECK(gap(ours, plain, training.layout) == 0);
  }
}

TEST_CASE("where gradients don't depend on parameters it is DeMo, a step late, bit by bit") {
  const Layout layout = matrices();
  Signs late = signs();
  late.weight_decay = 0.25F;
  late.decay = 0.5F;
  const DeMo<decltype(late.compressor)> demo{
      .weight_decay = 0.25F, .decay = 0.5F, .compressor = late.compressor};
  const auto at_rate = [](auto& recipe, std::uint64_t) { recipe.learning_rate = rate; };
  for (const int ranks : {1, 3}) {
    // A look completes the round of its step.
    const History ours = run(late, layout, ranks, steps, 1, {}, at_rate);
    const History now = run(demo, layout, ranks, steps, 1, {}, at_rate);
    for (std::size_t step = 0; step < steps; ++step) {
      const Floats& x = now[step][0].parameters;
      REQUIRE(ours[step][0].state.parts.at("anchor") == std::vector<double>(x.begin(), x.end()));
      // In the step in which it comes parameters decay from it, and go a step of the same size along the rank's own memory.
      if (step == 0) continue;
      const Floats& model = now[step - 1][0].parameters;
      for (const Segment& segment : layout.segments()) {
        const float decay = rate * segment.learning_rate_scale * (late.weight_decay * segment.weight_decay);
        for (std::size_t i = at(segment.offset); i < at(segment.offset + segment.count); ++i) {
          const float moved = std::abs(ours[step][0].parameters[i] - (model[i] - decay * model[i]));
          REQUIRE((moved == 0 || (moved > 0.49F * rate && moved < 2.01F * rate)));
        }
      }
    }
  }
}

TEST_CASE("what a sign cuts off is dropped: the memory keeps what was not picked, of whatever sizes") {
  // Where everything is picked nothing is left, though signs say little of it.
  Signs all = signs();
  all.compressor.inner.selection.ratio = 1;
  const History ours = train(all, 2, {.layout = matrices()});
  for (const std::vector<Snapshot>& now : ours)
    for (const Snapshot& rank : now)
      for (const double left : rank.state.parts.at("unsent")) REQUIRE(std::abs(left) < 1e-6);
}

TEST_CASE("what has no gradient stays, and a rank without one leaves a tile to the others") {
  const Layout layout = [] {
    Layout one;
    one.add({"x", {16, 48}}).add({"unused", {40}});
    return one;
  }();
  /// Three tiles: of all ranks, of rank 0 alone, of none.
  const auto anchor_of = [&](int ranks) {
    std::vector<double> anchor;
    on_ranks(ranks, [&](Threads& transport) {
      Optimizer optimizer{signs_alone(), transport, layout};
      Floats own = start(layout), g(own.size());
      for (std::uint64_t step = 1; step <= 5; ++step) {
        const Floats all = gradient(layout, transport.rank(), step, 1);
        for (std::size_t i = 0; i < 16 * 48; ++i) {
          const std::size_t tile = i % 48 / 16;
          g[i] = tile == 0 || (tile == 1 && transport.rank() == 0) ? all[i] : 0;
        }
        optimizer.step(own, g);
      }
      Seen state;
      optimizer.walk(state);
      if (transport.rank() == 0) anchor = state.parts.at("anchor");
    });
    return anchor;
  };
  const Floats x = start(layout);
  const std::vector<double> one = anchor_of(1), two = anchor_of(2);
  std::size_t moved = 0;
  each(layout, any_one, [&](std::size_t i) {
    if (i < 16 * 48 && i % 48 < 32) {
      moved += two[i] != in_double(x[i]) ? 1 : 0;
      if (i % 48 >= 16) REQUIRE(one[i] == two[i]);
    } else {
      REQUIRE(two[i] == in_double(x[i]));
    }
  });
  CHECK(moved > 16 * 16);
}

TEST_CASE("what can't work is refused") {
  on_ranks(1, [](Threads& transport) {
    const auto made = [&](const Signs& recipe, int group) {
      Layout layout;
      layout.add({.name = "x", .shape = {8, 8}, .group = group});
      (Optimizer{recipe, transport, layout});
    };
    CHECK_NOTHROW(made({}, 0));
    CHECK_THROWS_WITH_AS(made({.decay = 0}, 0), doctest::Contains("decay must be in (0, 1]"), usage_error);
    CHECK_THROWS_WITH_AS(made({.weight_decay = -1}, 0), doctest::Contains("weight_decay"), usage_error);
    CHECK_THROWS_WITH_AS(made({}, 1), doctest::Contains("group 1"), usage_error);
  });
}

TEST_CASE("bytes, and a bound on each rank's own gradient") {
  Layout layout;
  layout.add({"x", {64, 128}});
  // Two tiles, of 4 positions of 12 bits and 4 signs of 2 bits each.
  using Deployed = DisTrO<>;
  std::uint64_t sent = 0;
  on_ranks(3, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{Deployed{}, transport, layout, {.clip_norm = 1}};
    // And two norms, which recipes that compress without clipping by themselves would need.
    CHECK(optimizer.bytes_per_step().compressed == 2 * (32 + 2 * (8 + 16)) + 2 * 8);
    Floats x = start(layout), g = gradient(layout, raw.rank(), 1, 1);
    optimizer.step(x, g);
    optimizer.step(x, g);
    Seen state;
    optimizer.walk(state);
    if (raw.rank() != 0) return;
    sent = transport.traffic()[Phase::spread].bytes_sent;
    // e = beta (gamma g - q) + gamma g, all but 8 waves of it.
    double norm = 0;
    for (const double one : state.parts.at("unsent")) norm += one * one;
    CHECK(std::sqrt(norm) < 2 * 2e-4);
    CHECK(std::sqrt(norm) > 1.9 * 2e-4);
  });
  CHECK(sent == 2 * 2 * (32 + 2 * (8 + 16)));
}

}  // namespace
