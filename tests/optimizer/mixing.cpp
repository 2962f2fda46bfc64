// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "mixing_support.hpp"
#include "reference/mixing.hpp"
#include "restarts.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// Decentralized SGD, uncompressed, against oracles in double; the equalities between its methods; what it sends.

using namespace terse;
using namespace terse::test;

namespace {

using Settings = reference::Gossip::Options;

constexpr std::uint64_t steps = 40;

template <class O>
O oracle_of(const Layout& layout, int ranks, const Settings& settings) {
  return O(layout, at(ranks), settings, start(layout));
}

/// Vectors that travel in each message.
template <class O>
constexpr std::uint64_t vectors =
    std::is_same_v<O, reference::DoublyAveragedSgd> || std::is_same_v<O, reference::GradientTrackingSgd> ||
            std::is_same_v<O, reference::MomentumTrackingSgd>
        ? 2
        : 1;

/// What `rank` sends in a step: to those whose rows hold it, a header of 32 bytes for each vector and its segments; or two
/// exchanges among all ranks for an exact mean of each.
Sent traffic(const Layout& layout, const reference::Matrix& w, int ranks, int rank, std::uint64_t count,
             bool mean) {
  Layout plain;
  std::uint64_t packet = 32, receivers = 0;
  for (Segment segment : layout.segments()) {
    packet += to_eight(4 * static_cast<std::uint64_t>(segment.count));
    segment.compress = false;
    plain.add(segment);
  }
  if (mean) {
    const Sent once =
        formula<ScatterGather>(plain, ranks, rank, [](const Range&) { return std::uint64_t{0}; });
    return {count * once.reduced, count * once.spread};
  }
  for (int i = 0; i < ranks; ++i)
    if (i != rank && w[at(i) * at(ranks) + at(rank)] > 0) ++receivers;
  return {0, receivers * count * packet};
}

/// Graphs of all kinds, of one size: symmetric, with eigenvalues above -1/3 even where momentum looks ahead.
std::vector<reference::Matrix> graphs(std::size_t n) {
  std::vector<reference::Matrix> all{reference::ring(n), reference::complete(n)};
  // An irregular one with unequal weights.
  if (n == 4) all.push_back({.5, .25, .25, 0, .25, .625, 0, .125, .25, 0, .75, 0, 0, .125, 0, .875});
  if (n == 7) all.push_back(reference::lazy(reference::mesh(1, 7), 7));
  if (n == 8) all.push_back(reference::circulant(8, {1, 2, 4, 6, 7}));
  return all;
}

/// How far fp32 may be from double, where both work on numbers around 1. A step adds a few roundings, 6e-8 each, to a
/// parameter; quadratics and mixing forget them, in about 1 / learning_rate steps, and momentum keeps them for 10 steps
/// more: 40 steps of 4 roundings are 1e-5.
constexpr double tolerance = 1e-5;

/// A recipe beside its oracle: x and bytes of every rank in every step. `matrix(round)` is the matrix of the round.
template <class R, class O, class MatrixOf>
void compare(const R& recipe, O& oracle, const Layout& layout, int ranks, MatrixOf matrix) {
  CAPTURE(type_name<R>());
  CAPTURE(ranks);
  CAPTURE(recipe.average_every);
  CAPTURE(recipe.weight_decay);
  const History ours = train(recipe, layout, ranks, steps, warm_and_cool, R::blind);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const bool mean = recipe.average_every > 0 && step % recipe.average_every == 0;
    const reference::Matrix w = matrix(step - 1);
    oracle.step(mean ? reference::complete(at(ranks)) : w, static_cast<double>(warm_and_cool(step)),
                Quadratics::gradient<double>);
    CAPTURE(step);
    double worst = 0;
    bool counted = true;
    for (int rank = 0; rank < ranks; ++rank) {
      const Snapshot& one = ours[step - 1][at(rank)];
      worst = std::max(worst, relative_error(layout, one.parameters, oracle.x[at(rank)], any_one, 1));
      counted &= sent_in(one) == traffic(layout, w, ranks, rank, vectors<O>, mean);
    }
    REQUIRE(worst < tolerance);
    CHECK(counted);
  }
}

/// Whether exact means now and then leave a method stable.
template <class R>
constexpr bool takes_means = !decltype(R::momentum_correction)::facts.needs_fixed_symmetric;

/// On every fixed graph of every size, with decay and exact means now and then.
template <class R, class O>
void compare_on_fixed(R recipe, Settings settings) {
  const Layout layout = odd_sizes();
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    std::uint64_t every = 0;
    for (const reference::Matrix& weights : graphs(at(ranks))) {
      recipe.topology.graph.weights = weights;
      recipe.average_every = every;
      every = takes_means<R> ? 3 : 0;
      const reference::Matrix w = graph::Traits<decltype(recipe.topology.graph)>::lazy
                                      ? reference::lazy(weights, at(ranks))
                                      : weights;
      auto oracle = oracle_of<O>(layout, ranks, settings);
      compare(recipe, oracle, layout, ranks, [&](std::uint64_t) { return w; });
    }
  }
}

constexpr double beta = static_cast<double>(0.9F);
constexpr Settings heavy{.momentum = beta};
constexpr Settings nesterov{.momentum = beta, .nesterov = true};
constexpr Settings decaying(Settings settings, bool coupled = false) {
  settings.weight_decay = static_cast<double>(0.3F);
  settings.coupled = coupled;
  return settings;
}

}  // namespace

TEST_CASE("DSGD in its three orders follows its equations") {
  compare_on_fixed<DSgd<Given>, reference::AdaptThenCombineSgd>({.weight_decay = 0.3F}, decaying({}));
  compare_on_fixed<AwcDSgd<Given>, reference::AdaptWithCombineSgd>({.weight_decay = 0.3F}, decaying({}));
  compare_on_fixed<CtaDSgd<Given>, reference::CombineThenAdaptSgd>({.weight_decay = 0.3F}, decaying({}));
}

TEST_CASE("DmSGD, doubly averaged DmSGD and AWC-DmSGD follow their equations") {
  compare_on_fixed<DmSgd<Given>, reference::AdaptThenCombineSgd>({}, heavy);
  compare_on_fixed<DmSgd<Given>, reference::AdaptThenCombineSgd>(
      {.weight_decay = 0.3F, .momentum_correction = {{.nesterov = true}}}, decaying(nesterov));
  compare_on_fixed<DaDmSgd<Given>, reference::DoublyAveragedSgd>({.weight_decay = 0.3F}, decaying(heavy));
  compare_on_fixed<DaDmSgd<Given>, reference::DoublyAveragedSgd>(
      {.momentum_correction = {{.nesterov = true}}}, nesterov);
  compare_on_fixed<AwcDmSgd<Given>, reference::AdaptWithCombineSgd>({.weight_decay = 0.3F}, decaying(heavy));
}

TEST_CASE("DecentLaM and quasi-global momentum follow their equations, through rates of 0") {
  compare_on_fixed<DecentLaM<Given>, reference::DecentLaM>(
      {.weight_decay = 0.3F, .momentum_correction = {.follows_jumps = true}}, decaying(heavy));
  compare_on_fixed<DecentLaM<Given>, reference::DecentLaM>(
      {.momentum_correction = {.nesterov = true, .follows_jumps = true}}, nesterov);
  Settings quasi_global = heavy;
  quasi_global.quasi_global_decay = static_cast<double>(0.8F);
  compare_on_fixed<QgDmSgd<Given>, reference::QuasiGlobalSgd>(
      {.momentum_correction = {.decay = 0.8F, .follows_jumps = true}}, quasi_global);
  quasi_global.nesterov = true;
  compare_on_fixed<QgDmSgd<Given>, reference::QuasiGlobalSgd>(
      {.weight_decay = 0.3F, .momentum_correction = {.decay = 0.8F, .nesterov = true, .follows_jumps = true}},
      decaying(quasi_global));
}

TEST_CASE("by default their velocity does not grow of itself where the rate jumps up") {
  Settings settings = decaying(heavy);
  settings.keeps = beta;
  compare_on_fixed<DecentLaM<Given>, reference::DecentLaM>({.weight_decay = 0.3F}, settings);
  const double mu = static_cast<double>(0.8F);
  settings.quasi_global_decay = mu;
  settings.keeps = mu + (1 - mu) * beta;
  compare_on_fixed<QgDmSgd<Given>, reference::QuasiGlobalSgd>(
      {.weight_decay = 0.3F, .momentum_correction = {.decay = 0.8F}}, settings);
  settings.nesterov = true;
  settings.keeps = mu + (1 - mu) * beta * beta;
  compare_on_fixed<QgDmSgd<Given>, reference::QuasiGlobalSgd>(
      {.weight_decay = 0.3F, .momentum_correction = {.decay = 0.8F, .nesterov = true}}, settings);
}

TEST_CASE("rates that jump throw no method off that follows them, but by the papers' rule") {
  const auto on_ring = [](auto recipe) {
    recipe.topology.graph.weights = reference::ring(4);
    return recipe;
  };
  check_jumps(on_ring(DecentLaM<Given>{}));
  check_jumps(on_ring(DecentLaM<Given>{.momentum_correction = {.nesterov = true}}));
  check_jumps(on_ring(QgDmSgd<Given>{}));
  check_jumps(on_ring(QgDmSgd<Given>{.momentum_correction = {.nesterov = true}}));
  CHECK(thrown(on_ring(DecentLaM<Given>{.momentum_correction = {.follows_jumps = true}})) > 0.6);
  CHECK(thrown(on_ring(QgDmSgd<Given>{.momentum_correction = {.follows_jumps = true}})) > 0.6);
}

TEST_CASE("exact diffusion, tracking and momentum-accelerated consensus follow their equations") {
  compare_on_fixed<D2<Given>, reference::ExactDiffusionSgd>({.weight_decay = 0.3F}, decaying({}));
  compare_on_fixed<D2DmSgd<Given>, reference::ExactDiffusionSgd>({.weight_decay = 0.3F}, decaying(heavy));
  compare_on_fixed<GradientTracking<Given>, reference::GradientTrackingSgd>({.weight_decay = 0.3F},
                                                                            decaying({}));
  compare_on_fixed<MomentumTracking<Given>, reference::MomentumTrackingSgd>({.weight_decay = 0.3F},
                                                                            decaying(heavy));
  // Coupled decay makes the gradient depend on x, which changes between the two vectors.
  compare_on_fixed<GradientTracking<Given, CoupledDecay>, reference::GradientTrackingSgd>(
      {.weight_decay = 0.3F}, decaying({}, true));
  compare_on_fixed<MomentumTracking<Given, CoupledDecay>, reference::MomentumTrackingSgd>(
      {.weight_decay = 0.3F}, decaying(heavy, true));
  for (const float omega : {0.0F, 0.3F, 1.0F}) {
    Settings settings = decaying(heavy);
    settings.omega = static_cast<double>(omega);
    compare_on_fixed<MomentumConsensus<Given>, reference::MomentumConsensusSgd>(
        {.weight_decay = 0.3F, .momentum_correction = {.omega = omega}}, settings);
  }
}

TEST_CASE("stochastic gradient push follows its equations on regular and irregular directed graphs") {
  const Layout layout = odd_sizes();
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    {
      const StochasticGradientPush<> recipe{.weight_decay = 0.3F};
      auto oracle = oracle_of<reference::StochasticGradientPushSgd>(layout, ranks, decaying(heavy));
      compare(recipe, oracle, layout, ranks,
              [&](std::uint64_t round) { return reference::one_peer_exponential(at(ranks), round); });
    }
    using Push = StochasticGradientPush<graph::DirectedList>;
    const std::vector<std::vector<int>> lists = one_way(ranks);
    const Push recipe{.weight_decay = 0.3F,
                      .momentum_correction = {{.momentum = 0.5F}},
                      .topology = {graph::PushSum<graph::DirectedList>{{lists}}}};
    Settings settings = decaying(heavy);
    settings.momentum = 0.5;
    auto oracle = oracle_of<reference::StochasticGradientPushSgd>(layout, ranks, settings);
    compare(recipe, oracle, layout, ranks, [&](std::uint64_t) { return reference::push(lists); });
    // The weights are far from even, so that this was no plain averaging.
    if (ranks >= 3) CHECK(*std::max_element(oracle.weights.begin(), oracle.weights.end()) > 1.2);
  }
}

TEST_CASE("graphs that change from step to step are followed round by round") {
  const Layout layout = odd_sizes();
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const std::uint64_t every : {0U, 5U}) {
      const OnePeer recipe{.average_every = every};
      auto oracle = oracle_of<reference::AdaptThenCombineSgd>(layout, ranks, heavy);
      compare(recipe, oracle, layout, ranks,
              [&](std::uint64_t round) { return reference::one_peer_exponential(at(ranks), round); });
    }
    const Matched recipe{.momentum_correction = {.follows_jumps = true}, .topology = {{.seed = 77}}};
    auto oracle = oracle_of<reference::QuasiGlobalSgd>(layout, ranks, heavy);
    compare(recipe, oracle, layout, ranks,
            [&](std::uint64_t round) { return reference::random_matching(at(ranks), 77, round); });
  }
}

TEST_CASE("messages that leave before the gradient change no bit") {
  const Layout layout = odd_sizes();
  const auto check = [&](auto recipe) {
    CAPTURE(type_name<decltype(recipe)>());
    for (const int ranks : {1, 4}) {
      recipe.topology.graph.weights = reference::ring(at(ranks));
      for (const std::uint64_t every : {0U, 3U}) {
        if (every > 0 && !takes_means<decltype(recipe)>) continue;
        recipe.average_every = every;
        const History early = train(recipe, layout, ranks, steps, warm_and_cool, true);
        const History late = train(recipe, layout, ranks, steps, warm_and_cool, false);
        for (int rank = 0; rank < ranks; ++rank)
          CHECK(early.back()[at(rank)].parameters == late.back()[at(rank)].parameters);
      }
    }
  };
  check(AwcDSgd<Given>{});
  check(AwcDmSgd<Given>{.weight_decay = 0.1F});
  check(MomentumConsensus<Given>{.weight_decay = 0.1F});
}

namespace {

/// The largest distance between two runs' parameters, of all steps and ranks.
double gap(const Layout& layout, const History& a, const History& b) {
  double worst = 0;
  for (std::size_t step = 0; step < a.size(); ++step)
    for (std::size_t rank = 0; rank < a[step].size(); ++rank)
      worst = std::max(
          worst, relative_error(layout, a[step][rank].parameters, b[step][rank].parameters, any_one, 1));
  return worst;
}

template <class R>
History on(R recipe, const reference::Matrix& weights, const Layout& layout, int ranks) {
  recipe.topology.graph.weights = weights;
  return train(recipe, layout, ranks, steps, warm_and_cool, R::blind);
}

}  // namespace

TEST_CASE("where rates change gently it is the papers' rule") {
  const Layout layout = odd_sizes();
  const auto compare_rules = [&](auto ours) {
    ours.topology.graph.weights = reference::ring(4);
    auto papers = ours;
    papers.momentum_correction.follows_jumps = true;
    const auto differ = [&](float (*rate)(std::uint64_t)) {
      return gap(layout, train(ours, layout, 4, steps, rate, false),
                 train(papers, layout, 4, steps, rate, false));
    };
    CHECK(differ(gently) == 0);
    CHECK(differ(gently_from_0) < 1e-6);
    CHECK(differ(warm_and_cool) > 1e-3);
  };
  compare_rules(DecentLaM<Given>{});
  compare_rules(QgDmSgd<Given>{});
  compare_rules(QgDmSgd<Given>{.momentum_correction = {.nesterov = true}});
}

TEST_CASE("where everybody averages with everybody, momentum methods are parallel momentum SGD, or not") {
  const Layout layout = odd_sizes();
  constexpr int ranks = 4;
  const reference::Matrix everybody = reference::complete(ranks);
  const History parallel = train(MomentumSgd<>{}, layout, ranks, steps, warm_and_cool, false);
  CHECK(gap(layout, on(DmSgd<Given>{}, everybody, layout, ranks), parallel) < 1e-5);
  CHECK(gap(layout, on(DaDmSgd<Given>{}, everybody, layout, ranks), parallel) < 1e-5);
  // Momentum in gradients, not in steps, when the rate changes: as PmSGD's, but for the forgetting at a rate of 0.
  const History steady = train(
      MomentumSgd<>{}, layout, ranks, steps, [](std::uint64_t) { return 0.05F; }, false);
  DecentLaM<Given> decentlam{.momentum_correction = {.follows_jumps = true}};
  decentlam.topology.graph.weights = everybody;
  CHECK(gap(layout,
            train(
                decentlam, layout, ranks, steps, [](std::uint64_t) { return 0.05F; }, false),
            steady) < 1e-5);
  const auto warm = +[](std::uint64_t step) { return 0.01F * static_cast<float>(1 + step % 5); };
  CHECK(gap(layout, train(decentlam, layout, ranks, steps, warm, false),
            train(MomentumSgd<>{}, layout, ranks, steps, warm, false)) < 1e-5);
  // Without momentum, so are these.
  const History plain = train(MomentumSgd<>{.momentum_correction = {.momentum = 0}}, layout, ranks, steps,
                              warm_and_cool, false);
  CHECK(gap(layout, on(GradientTracking<Given>{}, everybody, layout, ranks), plain) < 1e-5);
  // Ranks keep their own last step; quasi-global momentum is damped.
  CHECK(gap(layout, on(AwcDmSgd<Given>{}, everybody, layout, ranks), parallel) > 1e-2);
  CHECK(gap(layout, on(QgDmSgd<Given>{}, everybody, layout, ranks), parallel) > 1e-2);
}

TEST_CASE("without momentum the methods are DSGD, and one rank alone is plain SGD") {
  const Layout layout = odd_sizes();
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const reference::Matrix w = reference::ring(at(ranks));
    const History atc = on(DSgd<Given>{}, w, layout, ranks), awc = on(AwcDSgd<Given>{}, w, layout, ranks);
    CHECK(gap(layout, on(DmSgd<Given>{.momentum_correction = {{.momentum = 0}}}, w, layout, ranks), atc) ==
          0);
    CHECK(gap(layout, on(DaDmSgd<Given>{.momentum_correction = {{.momentum = 0}}}, w, layout, ranks), atc) ==
          0);
    CHECK(gap(layout, on(DecentLaM<Given>{.momentum_correction = {.momentum = 0}}, w, layout, ranks), atc) <
          1e-5);
    CHECK(gap(layout, on(QgDmSgd<Given>{.momentum_correction = {.momentum = 0}}, w, layout, ranks), atc) ==
          0);
    CHECK(gap(layout, on(AwcDmSgd<Given>{.momentum_correction = {{.momentum = 0}}}, w, layout, ranks), awc) ==
          0);
    CHECK(gap(layout, on(MomentumConsensus<Given>{.momentum_correction = {.momentum = 0}}, w, layout, ranks),
              awc) < 1e-5);
    if (ranks > 1) {
      CHECK(gap(layout, atc, awc) > 1e-3);
      continue;
    }
    const auto rate = +[](std::uint64_t step) { return 0.01F * static_cast<float>(1 + step % 5); };
    const History heavy_ball = train(MomentumSgd<>{}, layout, 1, steps, rate, false);
    const History plain =
        train(MomentumSgd<>{.momentum_correction = {.momentum = 0}}, layout, 1, steps, rate, false);
    const auto alone = [&](auto recipe, const History& expected) {
      CAPTURE(type_name<decltype(recipe)>());
      recipe.topology.graph.weights = {1};
      CHECK(gap(layout, train(recipe, layout, 1, steps, rate, recipe.blind), expected) < 1e-5);
    };
    alone(DmSgd<Given>{}, heavy_ball);
    alone(DaDmSgd<Given>{}, heavy_ball);
    alone(AwcDmSgd<Given>{}, heavy_ball);
    alone(DecentLaM<Given>{.momentum_correction = {.follows_jumps = true}}, heavy_ball);
    alone(MomentumTracking<Given>{}, heavy_ball);
    alone(D2DmSgd<Given>{}, heavy_ball);
    alone(DSgd<Given>{}, plain);
    alone(CtaDSgd<Given>{}, plain);
    alone(D2<Given>{}, plain);
    alone(GradientTracking<Given>{}, plain);
  }
}

namespace {

/// Mean over ranks of what `value(snapshot, rank)[k]` is.
template <class Value>
std::vector<double> mean(const Layout& layout, int ranks, Value value) {
  std::vector<double> sum(at(layout.size()));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& one = value(at(rank));
    each(layout, any_one, [&](std::size_t k) { sum[k] += static_cast<double>(one[k]) / ranks; });
  }
  return sum;
}

/// A step's means over the ranks, and its rates.
struct Means {
  const Layout& layout;
  const std::vector<Snapshot>& was;
  const std::vector<Snapshot>& is;
  double rate, last_rate;

  double ratio() const { return last_rate > 0 ? rate / last_rate : 0; }
  std::vector<double> of(const std::vector<Snapshot>& when, const std::string& name) const {
    return mean(layout, static_cast<int>(when.size()),
                [&](std::size_t rank) { return when[rank].state.parts.at(name); });
  }
  std::vector<double> before(const std::string& name) const { return of(was, name); }
  std::vector<double> after(const std::string& name) const { return of(is, name); }
  /// gamma times what is there after the step.
  std::vector<double> taken(const std::string& name) const {
    std::vector<double> v = after(name);
    for (const Segment& segment : layout.segments())
      for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
        v[k] *= rate * static_cast<double>(segment.learning_rate_scale);
    return v;
  }
  /// factor before(name) + gamma g
  std::vector<double> carried(double factor, const std::string& name) const {
    std::vector<double> sum = taken("gradient");
    const std::vector<double> old = before(name);
    each(layout, any_one, [&](std::size_t k) { sum[k] += factor * old[k]; });
    return sum;
  }
};

/// The mean of all ranks moves by -move(means), in which there is no mixing matrix. `silent`: what has mean 0 after every
/// step.
template <class R, class Move>
void check_mean(R recipe, Move move, const char* silent = nullptr) {
  CAPTURE(type_name<R>());
  constexpr int ranks = 7;
  const Layout layout = odd_sizes();
  recipe.topology.graph.weights = reference::ring(ranks);
  const History ours = train(recipe, layout, ranks, steps, warm_and_cool, R::blind);
  const auto x = [&](std::uint64_t step) {
    return mean(layout, ranks, [&](std::size_t rank) { return ours[step - 1][rank].parameters; });
  };
  for (std::uint64_t step = 2; step <= steps; ++step) {
    CAPTURE(step);
    const Means means{layout, ours[step - 2], ours[step - 1], static_cast<double>(warm_and_cool(step)),
                      static_cast<double>(warm_and_cool(step - 1))};
    const std::vector<double> moved = move(means), from = x(step - 1), to = x(step);
    double worst = 0, rest = 0;
    each(layout, any_one,
         [&](std::size_t k) { worst = std::max(worst, std::abs(to[k] - from[k] + moved[k])); });
    // A few roundings of numbers around 1 in each rank's step.
    CHECK(worst < 5e-7);
    if (silent == nullptr) continue;
    const std::vector<double> silence = means.after(silent);
    each(layout, any_one, [&](std::size_t k) { rest = std::max(rest, std::abs(silence[k])); });
    // Each step's roundings stay in it.
    CHECK(rest < 2e-7 * static_cast<double>(step));
  }
}

}  // namespace

TEST_CASE("the mean of all ranks moves by the mean momentum in every step, however they mix") {
  const auto gradient = [](const Means& means) { return means.taken("gradient"); };
  const auto momentum = [](const Means& means) { return means.taken("momentum"); };
  const auto velocity = [&](const Means& means) { return means.carried(beta * means.ratio(), "velocity"); };
  check_mean(DSgd<Given>{}, gradient);
  check_mean(AwcDSgd<Given>{}, gradient);
  check_mean(CtaDSgd<Given>{}, gradient);
  check_mean(DmSgd<Given>{}, momentum);
  check_mean(DaDmSgd<Given>{}, momentum);
  check_mean(AwcDmSgd<Given>{}, momentum);
  check_mean(DecentLaM<Given>{.momentum_correction = {.follows_jumps = true}}, velocity);
  check_mean(DecentLaM<Given>{}, [](const Means& means) { return means.after("velocity"); });
  check_mean(QgDmSgd<Given>{.momentum_correction = {.follows_jumps = true}}, velocity);
  check_mean(D2<Given>{}, gradient);
  check_mean(D2DmSgd<Given>{}, momentum);
  check_mean(GradientTracking<Given>{}, gradient, "tracker");
  check_mean(MomentumTracking<Given>{}, momentum, "correction");
  check_mean(MomentumConsensus<Given>{},
             [&](const Means& means) { return means.carried(-beta, "displacement"); });
}

namespace {

/// How far the ranks are from their mean.
double disagreement(const Layout& layout, const std::vector<Snapshot>& ranks) {
  const auto middle =
      mean(layout, static_cast<int>(ranks.size()), [&](std::size_t rank) { return ranks[rank].parameters; });
  double worst = 0;
  for (const Snapshot& one : ranks)
    worst = std::max(worst, relative_error(layout, one.parameters, middle, any_one, 1));
  return worst;
}

/// 20 steps that drive the ranks apart, then 120 at rate 0.
template <class R>
void check_rest(R recipe) {
  CAPTURE(type_name<R>());
  const Layout layout = odd_sizes();
  recipe.topology.graph.weights = reference::ring(4);
  const History ours = train(
      recipe, layout, 4, 140, [](std::uint64_t step) { return step <= 20 ? 0.1F : 0.0F; }, R::blind);
  const double apart = disagreement(layout, ours[19]), together = disagreement(layout, ours.back());
  CHECK(apart > 1e-3);
  CHECK(together < 1e-2 * apart);
}

}  // namespace

TEST_CASE("at a learning rate of 0 the ranks go on to agree") {
  check_rest(DSgd<Given>{});
  check_rest(CtaDSgd<Given>{});
  check_rest(AwcDmSgd<Given>{});
  check_rest(DaDmSgd<Given>{.momentum_correction = {{.nesterov = true}}});
  check_rest(DecentLaM<Given>{});
  check_rest(DecentLaM<Given>{.momentum_correction = {.nesterov = true}});
  check_rest(QgDmSgd<Given>{.momentum_correction = {.nesterov = true}});
  check_rest(D2<Given>{});
  check_rest(D2DmSgd<Given>{});
  check_rest(GradientTracking<Given>{});
  check_rest(MomentumTracking<Given>{});
  check_rest(MomentumConsensus<Given>{});
}
