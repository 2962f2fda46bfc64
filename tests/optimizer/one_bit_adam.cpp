// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "reference/one_bit_adam.hpp"
#include "support.hpp"

// OneBitAdam against the oracle in double, through both stages.

using namespace terse;
using namespace terse::test;

namespace {

template <class G>
constexpr reference::Topology topology_of() {
  if (std::is_same_v<G, Ring>) return reference::Topology::ring;
  if (std::is_same_v<G, AllGather>) return reference::Topology::all_gather;
  return std::is_same_v<G, Alone> ? reference::Topology::alone : reference::Topology::scatter_gather;
}

template <class S, class G>
void describe(reference::OneBitAdam<>::Options& options) {
  options.scale = std::is_same_v<S, MeanAbs> ? reference::Scale::mean_abs : reference::Scale::rms;
  options.granularity = G::units().whole  ? reference::Granularity::whole
                        : G::units().size ? reference::Granularity::per_block
                                          : reference::Granularity::per_segment;
  options.block = std::max<index_t>(G::units().size, 1);
}

bool compressed_one(const Segment& segment) { return segment.compress; }
bool any_one(const Segment&) { return true; }

/// Whether float and double agree on all signs. Where they don't, the decision must have been within rounding
/// of zero: from there on the two runs are different ones, both right, and can't be compared any more.
bool same_signs(const Layout& layout, const std::vector<double>& ours,
                const reference::OneBitAdam<>& oracle) {
  bool same = true;
  each(layout, compressed_one, [&](std::size_t i) {
    if (std::signbit(ours[i]) == std::signbit(oracle.momentum[i])) return;
    CAPTURE(i);
    REQUIRE(oracle.doubted[i] != 0);
    same = false;
  });
  return same;
}

void compare_step(const Layout& layout, const std::vector<Snapshot>& ours,
                  const reference::OneBitAdam<>& oracle) {
  // Errors are sums and differences of momenta and may cancel to nothing, as the second one does for one
  // rank.
  const double momentum = rms(layout, oracle.momentum, compressed_one);
  for (std::size_t rank = 0; rank < ours.size(); ++rank) {
    CAPTURE(rank);
    const auto& parts = ours[rank].state.parts;
    // Replicas are equal to the bit.
    CHECK(ours[rank].parameters == ours[0].parameters);
    CHECK(parts.at("momentum") == ours[0].state.parts.at("momentum"));
    CHECK(relative_error(layout, ours[rank].parameters, oracle.parameters, any_one) < 1e-5);
    CHECK(relative_error(layout, parts.at("momentum"), oracle.momentum, any_one) < 1e-5);
    CHECK(relative_error(layout, parts.at("error"), oracle.residuals[rank], compressed_one, momentum) < 1e-5);
    if (parts.count("second_error") == 0) continue;
    std::vector<double> second(at(layout.size()));
    std::copy(parts.at("second_error").begin(), parts.at("second_error").end(),
              second.begin() + ours[rank].state.offsets.at("second_error"));
    CHECK(relative_error(layout, second, oracle.server_residuals[rank], compressed_one, momentum) < 1e-5);
  }
}

/// Runs recipe and oracle side by side and compares everything there is after every step.
template <class S, class Granular, class Topo>
void compare(const Layout& layout, int ranks, bool everything, Tally& tally) {
  using Recipe = OneBitAdam<ScaledSign<S, Granular>, FrozenVariance, Topo>;
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  CAPTURE(layout.size());
  constexpr std::uint64_t freeze = 20, steps = 50;

  Recipe recipe{.learning_rate = 1e-2F, .preconditioner = {.freeze = AtStep{freeze}}};
  reference::OneBitAdam<>::Options options;
  describe<S, Granular>(options);
  options.topology = topology_of<Topo>();
  options.freeze = reference::FreezeAtStep{freeze};
  options.beta1 = static_cast<double>(recipe.beta1);
  options.beta2 = static_cast<double>(recipe.beta2);
  options.epsilon = static_cast<double>(recipe.epsilon);
  options.update_clip = 10;
  Options run_options;
  if (everything) {
    recipe.weight_decay = 0.05F;
    recipe.bias_correction = true;
    recipe.preconditioner.update_clip = 1.5F;
    run_options.clip_norm = 3;
    options.bias_correction = true;
    options.weight_decay = static_cast<double>(recipe.weight_decay);
    options.update_clip = 1.5;
    options.clip_norm = 3;
  }
  const auto rate = [&](std::uint64_t step) { return everything ? 1e-2F / static_cast<float>(step) : 1e-2F; };

  const History ours = run(recipe, layout, ranks, steps, freeze + 5, run_options,
                           [&](Recipe& r, std::uint64_t step) { r.learning_rate = rate(step); });
  reference::OneBitAdam<> oracle(layout, ranks, options, start(layout));
  tally.possible += steps;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, freeze + 5));
    oracle.step(g, static_cast<double>(rate(step)));
    REQUIRE(oracle.frozen == (step >= freeze));
    if (!same_signs(layout, ours[step - 1][0].state.parts.at("momentum"), oracle)) return;
    compare_step(layout, ours[step - 1], oracle);
    ++tally.compared;
  }
}

/// Segments at word and block edges, one excluded, one straddling chunks, own rates, empty ones.
Layout edges() {
  Layout layout;
  layout.add({"w1", {4097}});
  layout.add({"none", {0}});
  layout.add({"one", {1}});
  layout.add({"bias", {65}, 2, 0, false});
  layout.add({"w2", {9, 7}, 0.5F});
  layout.add({"w3", {1000}, 1, 0.5F});
  layout.add({"eight", {8}, 1, 1, false});
  layout.add({"w4", {64}});
  return layout;
}

template <class S, class Granular>
void compare_topologies(bool everything) {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    compare<S, Granular, ScatterGather>(edges(), ranks, everything, tally);
    compare<S, Granular, Ring>(edges(), ranks, everything, tally);
    compare<S, Granular, AllGather>(edges(), ranks, everything, tally);
  }
  MESSAGE("compared " << tally.compared << " of " << tally.possible << " steps");
  CHECK(tally.compared * 10 >= tally.possible * 9);
}

}  // namespace

TEST_CASE("1-bit Adam follows the oracle with one scale per segment") {
  compare_topologies<RootMeanSquare, PerSegment>(false);
}

TEST_CASE(
    "1-bit Adam follows the oracle with one scale per block, clipping, decay, bias correction and a changing "
    "rate") {
  compare_topologies<MeanAbs, PerBlock<128>>(true);
}

TEST_CASE("1-bit Adam follows the oracle with one scale for all") {
  compare_topologies<RootMeanSquare, Whole>(true);
}

TEST_CASE("1-bit Adam follows the oracle at every size at a word's or block's edge") {
  Tally tally;
  for (const index_t count : {1, 7, 8, 9, 63, 64, 65, 1000, 4095, 4097})
    for (const int ranks : {1, 2, 3, 4, 7})
      compare<RootMeanSquare, PerSegment, ScatterGather>(Layout::flat(count), ranks, false, tally);
  CHECK(tally.compared * 10 >= tally.possible * 9);
}

TEST_CASE("a rank alone follows the oracle") {
  Tally tally;
  compare<RootMeanSquare, PerSegment, Alone>(edges(), 1, false, tally);
  CHECK(tally.compared == tally.possible);
}

TEST_CASE("the variance-ratio rule freezes at the oracle's step") {
  const Layout layout = edges();
  for (const std::uint64_t warmup : {std::uint64_t{0}, std::uint64_t{35}}) {
    const float beta2 = 0.9F;
    OneBitAdam<> recipe{.beta2 = beta2, .preconditioner = {.freeze = VarianceRatio{0.95F, 10, warmup}}};
    reference::OneBitAdam<>::Options options;
    options.freeze =
        reference::FreezeAtVarianceRatio{static_cast<double>(0.95F), 10, static_cast<index_t>(warmup)};
    options.beta2 = static_cast<double>(beta2);
    reference::OneBitAdam<> oracle(layout, 2, options, start(layout));
    index_t frozen_at = 0;
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout, masks_any()};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= 60; ++step) {
        const bool full = optimizer.full_precision();
        optimizer.step(x, gradient(layout, transport.rank(), step, 1));
        if (transport.rank() == 0 && full && !optimizer.full_precision())
          frozen_at = static_cast<index_t>(step);
      }
    });
    for (std::uint64_t step = 1; step <= 60 && !oracle.frozen; ++step)
      oracle.step(std::vector<Floats>{gradient(layout, 0, step, 1), gradient(layout, 1, step, 1)}, 1e-3);
    REQUIRE(oracle.frozen);
    CHECK(frozen_at == oracle.frozen_at);
    CHECK(frozen_at > static_cast<index_t>(std::max(warmup, std::uint64_t{10})));
  }
}

TEST_CASE("no gradient is lost at step 1, and step n + 1 is the first compressed one") {
  const Layout layout = Layout::flat(100);
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{OneBitAdam<>{.learning_rate = 1, .preconditioner = {.freeze = AtStep{3}}}, transport,
                        layout};
    Floats x(at(layout.size()));
    const Floats g(at(layout.size()), 0.25F);
    optimizer.step(x, g);
    // m = 0.1 g and v = 0.001 g^2, so the first move is 0.1 / sqrt(0.001).
    CHECK(x[0] == doctest::Approx(-0.1 / std::sqrt(0.001)).epsilon(1e-5));
    std::uint64_t before = 0;
    for (int step = 2; step <= 5; ++step) {
      before = transport.traffic()[Phase::reduce].bytes_sent;
      optimizer.step(x, g);
      const std::uint64_t sent = transport.traffic()[Phase::reduce].bytes_sent - before;
      // Half of 100 elements rounds up to 64, the rest are 36; dense or as words of bits and a scale.
      const std::uint64_t own = raw.rank() == 0 ? 36 : 64;
      CHECK(sent == 32 + (step <= 3 ? own * 4 : 8 + 8));
    }
  });
}

TEST_CASE("a coordinate without variance neither moves nor keeps an error nor counts in a scale") {
  const Layout layout = Layout::flat(300);
  for (const bool silent : {false, true}) {
    Snapshot outcome;
    ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
      Optimizer optimizer{OneBitAdam<>{.preconditioner = {.freeze = AtStep{5}}}, transport, layout,
                          masks_any()};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= 30; ++step) {
        Floats g(at(layout.size()), 0.0F);
        for (std::size_t i = 0; i < 300; ++i)
          if (i % 3 != 0) g[i] = i % 2 == 0 ? 1.0F : -1.0F;
        // After the freeze the silent ones speak up.
        if (step > 5 && !silent)
          for (std::size_t i = 0; i < 300; i += 3) g[i] = 100;
        optimizer.step(x, g);
      }
      if (transport.rank() != 0) return;
      optimizer.walk(outcome.state);
      outcome.parameters = x;
    });
    const Floats before = start(layout);
    for (std::size_t i = 0; i < 300; ++i) {
      CAPTURE(i);
      const double m = outcome.state.parts.at("momentum")[i];
      if (i % 3 == 0) {
        CHECK(outcome.parameters[i] == before[i]);
        CHECK(outcome.state.parts.at("error")[i] == 0);
        CHECK(m == 0);
      } else {
        // All that count have the same magnitude, so the scale is exact: 1 - 0.9^30 of the gradient.
        CHECK(std::abs(m) == doctest::Approx(1 - std::pow(0.9, 30)).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("the learning rate may be 0 at any step") {
  const Layout layout = Layout::flat(200);
  const History history = run(OneBitAdam<>{.preconditioner = {.freeze = AtStep{4}}}, layout, 3, 12, 1, {},
                              [](OneBitAdam<>& recipe, std::uint64_t) { recipe.learning_rate = 0; });
  const Snapshot& last = history.back()[0];
  CHECK(last.parameters == start(layout));
  for (const double e : last.state.parts.at("error")) CHECK(std::isfinite(e));
}
