// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "compositions.hpp"

// Compositions of two stages against the oracle of all compositions, and local methods around compositions.

using namespace terse;
using namespace terse::test;

namespace {

// See compositions_compressed.cpp; 6e-7 is measured.
constexpr double rounding = 2e-6;
constexpr std::uint64_t freeze_step = 10;

/// Some elements have no variance when the first stage ends, and are masked.
constexpr Training partly_silent{.silent_until = freeze_step + 5}, clipped{.clip_norm = 6};

using Frozen = Averaging<LocalAverage, FrozenVariance, Sign, AllGather>;

}  // namespace

TEST_CASE("1-bit Adam and its relatives follow the oracle through the freeze") {
  OneBitAdam<AllGather> one_bit{.learning_rate = 0.01F, .weight_decay = 0.1F};
  one_bit.preconditioner.freeze = AtStep{freeze_step};
  follows_oracle(one_bit, rounding, clipped);
  follows_oracle(one_bit, rounding, partly_silent);

  OneBitAdam<TopK<>, AllGather> sparse{.learning_rate = 0.01F, .compressor = {.selection = {.ratio = 0.2}}};
  sparse.preconditioner.freeze = AtStep{freeze_step};
  follows_oracle(sparse, rounding, partly_silent);

  follows_oracle(
      Staged<Averaging<ExponentialAverage, AmsgradVariance>, Frozen, AtStep>{
          .first = {.learning_rate = 0.01F, .weight_decay = 0.1F},
          .second = {.learning_rate = 0.01F, .weight_decay = 0.1F},
          .when = {freeze_step}},
      rounding, partly_silent);
  follows_oracle(
      Staged<Averaging<NesterovAverage, AdagradSum>, Averaging<LocalAverage, AdagradSum, Sign, AllGather>>{
          .first = {.learning_rate = 0.05F}, .second = {.learning_rate = 0.05F}, .when = {freeze_step}},
      rounding);
  follows_oracle(
      Staged<Averaging<LocalAverage, AdamVariance>, Averaging<LionInterpolation, SignStep, Sign, AllGather>>{
          .first = {.learning_rate = 0.01F}, .second = {.learning_rate = 0.01F}, .when = {freeze_step}},
      rounding);
  follows_oracle(
      Staged<Averaging<HeavyBall>, Averaging<FactorMasking, TopK<>, AllGather>>{
          .first = {.learning_rate = 0.02F},
          .second = {.learning_rate = 0.02F, .compressor = {.selection = {.ratio = 0.2}}},
          .when = {freeze_step}},
      rounding);
  follows_oracle(
      Staged<Averaging<ExponentialAverage, LayerWise<AdamVariance>>,
             Averaging<LocalAverage, LayerWise<FrozenVariance>, Sign, AllGather>>{
          .first = {.learning_rate = 0.01F, .weight_decay = 0.1F},
          .second = {.learning_rate = 0.01F, .weight_decay = 0.1F},
          .when = {freeze_step}},
      rounding, partly_silent);
}

TEST_CASE("1-bit LAMB and its relatives follow the oracle through the freeze") {
  OneBitLamb<AllGather> one_bit{.learning_rate = 0.01F, .beta2 = 0.9F, .weight_decay = 0.1F};
  one_bit.preconditioner.freeze = AtStep{freeze_step};
  follows_oracle(one_bit, rounding, clipped);
  follows_oracle(one_bit, rounding, partly_silent);

  OneBitLamb<TopK<>, AllGather> sparse{.learning_rate = 0.01F, .compressor = {.selection = {.ratio = 0.2}}};
  sparse.preconditioner.freeze = AtStep{freeze_step};
  follows_oracle(sparse, rounding, partly_silent);

  // Each of its two parts without the other one.
  follows_oracle(
      Staged<Averaging<ExponentialAverage, AdamVariance>,
             Averaging<BalancedAverage, FrozenVariance, Sign, AllGather>>{
          .first = {.learning_rate = 0.01F}, .second = {.learning_rate = 0.01F}, .when = {freeze_step}},
      rounding, partly_silent);
  follows_oracle(
      Staged<Averaging<ExponentialAverage, LayerWise<AdamVariance>>,
             Averaging<LocalAverage, FrozenLayerRates<>, Sign, AllGather>>{
          .first = {.learning_rate = 0.01F},
          .second = {.learning_rate = 0.01F, .weight_decay = 0.1F, .preconditioner = {.beta2 = 0.9F}},
          .when = {freeze_step}},
      rounding, partly_silent);
  // Without a first stage no layer has a scale.
  follows_oracle(
      Staged<Averaging<HeavyBall>, Averaging<BalancedAverage, Sign, AllGather>>{
          .first = {.learning_rate = 0.02F}, .second = {.learning_rate = 0.02F}, .when = {0}},
      rounding);
}

TEST_CASE("a stage that compresses from the first step on") {
  follows_oracle(
      Staged<Averaging<HeavyBall>, Averaging<HeavyBall, Sign, AllGather>>{
          .first = {.learning_rate = 0.02F}, .second = {.learning_rate = 0.02F}, .when = {0}},
      rounding);
}

TEST_CASE("what a stage has learned is the next one's to begin with") {
  // Scalars and buffers of four policies, none of which stands where another one's does.
  follows_oracle(
      Staged<Averaging<ExponentialAverage, AdamVariance>,
             Averaging<NesterovAverage, AdamVariance, TopK<>, AllGather>>{
          .first = {.learning_rate = 0.03F},
          .second = {.learning_rate = 0.03F, .compressor = {.selection = {.ratio = 0.2}}},
          .when = {freeze_step}},
      rounding);
  // Rates may change with the stage.
  Layout layout;
  layout.add({"w", {12, 16}, 0.5F}).add({"b", {70}});
  follows_oracle(
      Staged<Averaging<ExponentialAverage, AdamVariance>, Frozen>{
          .first = {.learning_rate = 0.02F, .weight_decay = 0.1F},
          .second = {.learning_rate = 0.005F},
          .when = {freeze_step}},
      rounding, {.keeps_rate = true}, layout);
}

TEST_CASE_TEMPLATE("a frozen variance has the first stage's bias correction", First, AdamVariance,
                   AmsgradVariance) {
  const Layout layout = Layout::flat(64);
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Staged<Averaging<ExponentialAverage, First>, Frozen>{.when = {3}}, transport, layout};
    Floats x(at(layout.size()));
    for (int step = 0; step < 3; ++step) optimizer.step(x, Floats(x.size(), 0.25F));
    Seen state;
    optimizer.walk(state);
    // Of a constant gradient the corrected variance is its square, from the first step on.
    for (const double reciprocal : state.parts.at("variance"))
      CHECK(reciprocal == doctest::Approx(4).epsilon(1e-4));
  });
}

TEST_CASE("segments that are not compressed follow the first stage to the end, its rates too") {
  follows_oracle(
      Staged<Averaging<ExponentialAverage, AdamVariance>, Frozen>{
          .first = {.learning_rate = 0.02F, .weight_decay = 0.1F},
          .second = {.learning_rate = 0.005F},
          .when = {freeze_step}},
      rounding, {.keeps_rate = true});
}

TEST_CASE("segments that are not compressed follow the first stage to the end, its layer-wise rates too") {
  follows_oracle(
      Staged<Averaging<ExponentialAverage, LayerWise<AdamVariance>>,
             Averaging<LocalAverage, LayerWise<FrozenVariance>, Sign, AllGather>>{
          .first = {.learning_rate = 0.01F, .preconditioner = {.max_coefficient = 10}},
          .second = {.learning_rate = 0.01F, .preconditioner = {.max_coefficient = 0.1F}},
          .when = {freeze_step}},
      rounding);
}

TEST_CASE("what is frozen is what the first stage divided by, whatever it calls it") {
  const Staged<Averaging<HeavyBall, AdagradSum>, Frozen> recipe{
      .first = {.learning_rate = 0.05F}, .second = {.learning_rate = 0.05F}, .when = {freeze_step}};
  const Layout layout = few_layers();
  const History ours = train(recipe, layout, {});
  std::size_t still = 0;
  each(
      layout, [](const Segment&) { return true; },
      [&](std::size_t i) { still += ours[freeze_step][0].parameters[i] == ours.back()[0].parameters[i]; });
  CHECK(still == 0);
}

TEST_CASE("ranks whose first stages differ are told so, of whatever type the second stage is") {
  using Same = Staged<Averaging<HeavyBall>, Averaging<HeavyBall, Sign, AllGather>>;
  const auto run = [](auto change) {
    ThreadGroup(2, std::chrono::seconds(5)).run([&](Threads& transport) {
      Same recipe{.when = {1}};
      if (transport.rank() == 1) change(recipe);
      Optimizer optimizer{recipe, transport, few_layers()};
    });
  };
  CHECK_NOTHROW(run([](Same&) {}));
  CHECK_THROWS_AS(run([](Same& recipe) { recipe.second.learning_rate = 0.2F; }), mismatch_error);
  CHECK_THROWS_AS(run([](Same& recipe) { recipe.first.learning_rate = 0.2F; }), mismatch_error);
}

namespace {

/// Half the square of the distance from the ranks' common place.
double loss(const Layout& layout, const Floats& x) {
  double sum = 0;
  each(
      layout, [](const Segment&) { return true; },
      [&](std::size_t i) {
        const double away =
            static_cast<double>(x[i]) - static_cast<double>(noise(11, 0, 0, static_cast<index_t>(i)));
        sum += away * away / 2;
      });
  return sum;
}

template <class R>
constexpr bool mixes = requires {
  typename decltype(terse::detail::Composed<R>::topology)::Graph;
};

/// A recipe on that quadratic; ranks differ by noise alone. The loss before and after, of the mean of the ranks' parameters;
/// those of means over all ranks are alike.
template <class R>
std::pair<double, double> descend(const R& recipe, std::uint64_t steps) {
  const Layout layout = few_layers();
  std::vector<double> after(3);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout), g(x.size());
    for (std::uint64_t step = 1; step <= steps; ++step) {
      each(
          layout, [](const Segment&) { return true; },
          [&](std::size_t i) {
            const auto k = static_cast<index_t>(i);
            g[i] = x[i] - noise(11, 0, 0, k) + 0.1F * noise(13, transport.rank(), step, k);
          });
      optimizer.step(x, g);
    }
    Floats mean(x.size());
    optimizer.mean_parameters(x, mean);
    if constexpr (!mixes<R>) CHECK(mean == x);
    after[at(transport.rank())] = loss(layout, mean);
  });
  return {loss(layout, start(layout)), after[0]};
}

}  // namespace

TEST_CASE("two stages have to be told when the first is over") {
  using OneBitAmsgrad =
      Staged<Averaging<ExponentialAverage, AmsgradVariance>, Averaging<LocalAverage, FrozenVariance, Sign>>;
  const OneBitAmsgrad recipe{.first = {.learning_rate = 0.03F, .momentum_correction = {.beta1 = 0.9F}},
                             .second = {.learning_rate = 0.005F, .momentum_correction = {.beta1 = 0.9F}},
                             .when = {40}};
  const auto [before, after] = descend(recipe, 160);
  CHECK(after < before / 10);
  CHECK_THROWS_WITH_AS(descend(OneBitAmsgrad{}, 1), doctest::Contains("the end of the first stage"),
                       usage_error);
}

TEST_CASE("decentralized compositions reach the optimum") {
  const auto [before, after] = descend(DAdam<>{.learning_rate = 0.02F}, 200);
  CHECK(after < before / 10);

  DecentLaM<TopK<>, Ef21> compressed{.learning_rate = 0.02F, .consensus_rate = 0.1F};
  const auto [far, near] = descend(compressed, 600);
  CHECK(near < far / 10);
  // Beyond what the compressor bears, the copies run away.
  compressed.consensus_rate = 1;
  const auto [start, end] = descend(compressed, 120);
  CHECK(end > 10 * start);
}

TEST_CASE("local methods go around compositions, and around each other") {
  const auto [before, after] = descend(
      DiLoCo<LocalSgd<Adam<>>>{.inner = {.inner = {.learning_rate = 0.02F}, .period = 4}, .period = 8}, 160);
  CHECK(after < before / 10);

  SlowMo<OneBitAdam<>, Inside::together> slow{.inner = {.learning_rate = 0.005F}, .period = 8};
  slow.inner.preconditioner.freeze = AtStep{40};
  const auto [far, near] = descend(slow, 160);
  CHECK(near < far / 10);
}
