// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "local_training.hpp"
#include "reference/loco.hpp"
#include "reference/mixing.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/topology/median_clip.hpp"

// SparseLoCo, CocktailSGD, NoLoCo and DiLoCo over a graph against oracles in double; what they are equal to.

using namespace terse;
using namespace terse::test;

namespace {

using Sparser = SparseLoCo<MomentumSgd<>, Tiles<16>>;
using Paired = NoLoCo<MomentumSgd<>>;
template <class G>
using Gossiping = DiLoCo<MomentumSgd<>, Mixing<G>>;
using Picker = CocktailSgd<MomentumSgd<>, TopK<>, OwnersResidual, AllGather>;

/// Fits the quadratics.
Layout matrices() {
  Layout layout;
  layout.add({"matrix", {20, 37}}).add({"none", {0}}).add({"vector", {300}, 0.5F});
  layout.add({"bias", {65}, 2, 0, false}).add({"one", {1}});
  return layout;
}
float layout_rate(const Layout& layout, std::size_t k) {
  for (const Segment& segment : layout.segments())
    if (at(segment.offset) <= k && k < at(segment.offset + segment.count)) return segment.learning_rate_scale;
  return 0;
}
bool compressed_one(const Segment& segment) { return segment.compress; }

Sparser sparser(std::uint64_t period, double share, float decay, float rate) {
  return {.period = period,
          .decay = decay,
          .outer = {rate},
          .compressor = {.inner = {.selection = {.ratio = share}}}};
}

/// Compares parameters of all steps with the oracle's, and what a rank sends: so many packets of the whole model.
template <class O, class Packets>
void follows_whole_models(const History& ours, O& oracle, Packets packets) {
  std::uint64_t packet = 32;
  const Layout layout = odd_sizes();
  for (const Segment& segment : layout.segments())
    packet += to_eight(4 * static_cast<std::uint64_t>(segment.count));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    oracle.step(in_double(warm_and_cool(step)), Quadratics::gradient<double>);
    const reference::Arenas x = oracle.x();
    for (std::size_t rank = 0; rank < x.size(); ++rank) {
      const Snapshot& now = ours[step - 1][rank];
      REQUIRE(relative_error(odd_sizes(), now.parameters, x[rank], any_one, 1) < tolerance);
      CHECK(sent_in(now) == Sent{0, packets(rank, step) * packet});
    }
  }
}

/// DiLoCo over a graph: parameters of all steps beside the oracle's, and what is sent to so many neighbours.
template <class G>
void follows_graph(const reference::Matrix& w, int ranks, std::uint64_t period, std::uint64_t neighbors) {
  CAPTURE(ranks);
  Gossiping<G> recipe{.inner = {.weight_decay = 0.1F}, .period = period};
  if (ranks == 3) recipe.outer = {.rate = 1.2F, .momentum = 0.5F};
  const History ours = train(recipe, ranks);
  reference::GraphTraining<reference::MomentumSgd<>> oracle(
      odd_sizes(), at(ranks), {.momentum = in_double(0.9F), .weight_decay = in_double(0.1F)},
      start(odd_sizes()));
  oracle.period = period;
  oracle.eta = in_double(recipe.outer.rate);
  oracle.gamma = in_double(recipe.outer.momentum);
  oracle.w = w;
  follows_whole_models(ours, oracle,
                       [&](std::size_t, std::uint64_t step) { return step % period == 0 ? neighbors : 0; });
}

/// Trains, and compares with the oracle whose means are taken in this way. Returns the names of what a checkpoint would hold.
template <class R>
std::vector<std::string> follows_oracle(const R& recipe, int ranks, float decay, bool over_senders,
                                        bool clipped) {
  CAPTURE(ranks);
  const Layout layout = matrices();
  const float rate = recipe.outer.rate;
  const std::uint64_t period = recipe.period;
  const History ours = train(recipe, ranks, {up_and_down, layout});
  reference::SparseTraining<reference::MomentumSgd<>> oracle(layout, at(ranks), {.momentum = in_double(0.9F)},
                                                             start(layout));
  oracle.period = period;
  oracle.side = 16;
  oracle.share = 0.1;
  oracle.beta = in_double(decay);
  oracle.over_senders = over_senders;
  oracle.clipped = clipped;
  oracle.alpha = in_double(rate);
  std::uint64_t meetings = 0, compared = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    oracle.step(in_double(up_and_down(step)), Quadratics::gradient<double>);
    const bool meets = step % period == 0;
    // Of a tile's ceil(n / 10) picks positions and values.
    const Sent sent = formula<AllGather>(layout, ranks, 0, [&](const Range& range) {
      std::uint64_t bytes = 0;
      for (const Piece& piece : range.pieces())
        for (const reference::Block& block : reference::blocks_of(layout.segments()[at(piece.segment)], 16)) {
          const std::uint64_t n = block.places.size(), k = (n + 9) / 10;
          bytes += position_bytes(n, k) + to_eight(4 * k);
        }
      return bytes;
    });
    CHECK(sent_in(now[0]) == (meets ? sent : Sent{}));
    if (!meets) continue;
    REQUIRE(all_alike(now));
    ++meetings;
    if (oracle.doubted) {
      oracle.go_on_from({now[0].parameters.begin(), now[0].parameters.end()});
      for (std::size_t rank = 0; rank < now.size(); ++rank)
        oracle.e[rank] = spread_out(layout, now[rank].state, "outer_error");
      continue;
    }
    ++compared;
    REQUIRE(relative_error(layout, now[0].parameters, oracle.theta, any_one, 1) < tolerance);
    for (std::size_t rank = 0; rank < now.size(); ++rank)
      REQUIRE(relative_error(layout, spread_out(layout, now[rank].state, "outer_error"), oracle.e[rank],
                             compressed_one) < 1e-4);
  }
  CHECK(compared * 2 > meetings);
  std::vector<std::string> names;
  for (const auto& part : ours.back()[0].state.parts) names.push_back(part.first);
  return names;
}

}  // namespace

TEST_CASE("SparseLoCo follows its algorithm, memory included") {
  std::uint64_t period = 1;
  for (const int ranks : {1, 2, 3, 4})
    follows_oracle(sparser(++period, 0.1, 0.9F, ranks == 3 ? 0.8F : 1), ranks, 0.9F, false, false);
}

TEST_CASE("and its authors' code, over the senders of an element and with clipped packets") {
  using Deployed = SparseLoCo<MomentumSgd<>, MeanOverSenders<Tiles<16>>, Residual, Gathered<MedianClip>>;
  const Deployed deployed{
      .period = 3, .decay = 0.9F, .outer = {0.5F}, .compressor = {{.inner = {.selection = {.ratio = 0.1}}}}};
  for (const int ranks : {1, 2, 3, 5}) {
    const std::vector<std::string> names = follows_oracle(deployed, ranks, 0.9F, true, true);
    if (ranks == 3) CHECK(names == follows_oracle(sparser(3, 0.1, 0.9F, 1), ranks, 0.9F, false, false));
  }
}

TEST_CASE("Local SGD over Gathered merges moves, not models, in each step where the period is 1") {
  const Training training{.layout = matrices()};
  for (const std::uint64_t period : std::initializer_list<std::uint64_t>{1, 4}) {
    const History plain = train(LocalSgd<MomentumSgd<>>{.period = period}, 3, training);
    const History merged =
        train(LocalSgd<MomentumSgd<>, Gathered<MedianClip>>{.period = period}, 3, training);
    CHECK(gap(merged, plain, training.layout) > 100 * tolerance);
    CHECK(gap(train(LocalSgd<MomentumSgd<>, Gathered<MedianClip>>{.period = period}, 1, training),
              train(LocalSgd<MomentumSgd<>>{.period = period}, 1, training), training.layout) < tolerance);
    CHECK(all_alike(merged.back()));
  }
  on_ranks(2, [](Threads& transport) {
    const double examples = 8;
    LocalSgd<MomentumSgd<>, Gathered<MedianClip>> recipe{.period = 4};
    if (transport.rank() == 1) recipe.topology.weight = &examples;
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, matrices()}), doctest::Contains("weighted"),
                         mismatch_error);
  });
}

TEST_CASE("SparseLoCo is a row of DiLoCo without momentum, bit by bit, and Local SGD where all is sent") {
  const Training training{.layout = matrices()};
  const Sparser ours = sparser(4, 0.1, 0.9F, 0.75F);
  const DiLoCo<MomentumSgd<>, Tiles<16>, Residual, AllGather> row{.period = 4,
                                                                  .outer = {.rate = 0.75F, .momentum = 0},
                                                                  .compressor = ours.compressor,
                                                                  .error_feedback = {.decay = 0.9F}};
  CHECK(gap(train(ours, 3, training), train(row, 3, training), training.layout) == 0);

  const History all = train(sparser(4, 1, 1, 1), 3, training);
  CHECK(gap(all, train(LocalSgd<MomentumSgd<>>{.period = 4}, 3, training), training.layout) < tolerance);
  for (const double error : all.back()[1].state.parts.at("outer_error")) REQUIRE(error == 0);
}

TEST_CASE("CocktailSGD's picks, where they are all, make Local SGD; few leave all ranks alike") {
  const Training training{.layout = matrices()};
  using Cocktail = Chain<Dense, Strata<false>, Largest>;
  SparseLoCo<MomentumSgd<>, Cocktail, Residual, ScatterGather> recipe{
      .period = 4, .decay = 1, .compressor = {.selection = {.first = {.ratio = 1}, .second = {.ratio = 1}}}};
  const History local = train(LocalSgd<MomentumSgd<>>{.period = 4}, 3, training);
  CHECK(gap(train(recipe, 3, training), local, training.layout) < tolerance);
  recipe.compressor.selection = {.first = {.ratio = 0.5}, .second = {.ratio = 0.2}};
  const History ours = train(recipe, 3, training);
  CHECK(all_alike(ours.back()));
  CHECK(gap(ours, local, training.layout) > 100 * tolerance);
}

TEST_CASE("CocktailSGD follows its algorithm, at once and steps late, looked at or not") {
  struct Case {
    int ranks;
    std::uint64_t period, delay;
  };
  const Layout layout = matrices();
  for (const Case one : std::initializer_list<Case>{{1, 2, 0}, {2, 1, 1}, {3, 1, 0}, {3, 4, 2}, {4, 3, 3}}) {
    const int ranks = one.ranks;
    CAPTURE(ranks);
    const Picker recipe{
        .period = one.period, .compressor = {{.ratio = 0.1}}, .schedule = {.count = 1, .delay = one.delay}};
    const History ours = train(recipe, ranks, {up_and_down, layout});
    reference::TradeTraining<reference::MomentumSgd<>> oracle(layout, at(ranks),
                                                              {.momentum = in_double(0.9F)}, start(layout));
    oracle.period = one.period;
    oracle.delay = one.delay;
    oracle.share = 0.1;
    std::uint64_t compared = 0;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const std::vector<Snapshot>& now = ours[step - 1];
      REQUIRE(all_alike(now, "anchor"));
      oracle.step(in_double(up_and_down(step)), Quadratics::gradient<double>);
      if (oracle.doubted) {
        oracle.z = now[0].state.parts.at("anchor");
        for (std::size_t rank = 0; rank < now.size(); ++rank)
          oracle.go_on_from(rank, {now[rank].parameters.begin(), now[rank].parameters.end()},
                            now[rank].state.parts.at("traded"));
        continue;
      }
      ++compared;
      REQUIRE(relative_error(layout, now[0].state.parts.at("anchor"), oracle.z, any_one, 1) < tolerance);
      const reference::Arenas x = oracle.x();
      for (std::size_t rank = 0; rank < now.size(); ++rank) {
        REQUIRE(relative_error(layout, now[rank].parameters, x[rank], any_one, 1) < tolerance);
        REQUIRE(relative_error(layout, now[rank].state.parts.at("traded"), oracle.traded[rank], any_one, 1) <
                tolerance);
      }
    }
    CHECK(compared * 2 > steps);
    CHECK(gap(ours, train(recipe, ranks, {up_and_down, layout, steps, false}), layout) == 0);
  }
}

TEST_CASE("CocktailSGD that sends all at once is the average of parameters") {
  const Training training{.layout = matrices()};
  const History local = train(LocalSgd<MomentumSgd<>>{.period = 4}, 3, training);
  const Picker all{.period = 4, .compressor = {{.ratio = 1}}, .schedule = {.count = 1, .delay = 0}};
  CHECK(gap(train(all, 3, training), local, training.layout) < tolerance);
  const CocktailSgd<MomentumSgd<>, Dense> dense{.period = 4, .schedule = {.count = 1, .delay = 0}};
  CHECK(gap(train(dense, 3, training), local, training.layout) < tolerance);
}

TEST_CASE("CocktailSGD loses nothing: ranks' mean moves by their steps, but for what owners still owe") {
  const Layout layout = matrices();
  constexpr int ranks = 3;
  constexpr std::uint64_t count = 30;
  CocktailSgd<MomentumSgd<>> recipe{.inner = plain(), .schedule = {.count = 2, .delay = 1}};
  recipe.compressor.selection = {.first = {.ratio = 0.5}, .second = {.ratio = 0.2}};
  std::vector<Floats> ends(ranks), models(ranks);
  std::vector<Seen> states(ranks);
  on_ranks(ranks, [&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    optimizer.learning_rate(1.0F / 64);
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= count; ++step)
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    const std::size_t rank = at(transport.rank());
    optimizer.walk(states[rank]);
    ends[rank] = models[rank] = x;
    optimizer.read_out(ReadOut::current, models[rank]);
  });
  CHECK(models[1] == models[0]);
  CHECK_FALSE(ends[1] == ends[0]);
  std::vector<double> expected(at(layout.size())), found(expected);
  const Floats from = start(layout);
  for (int rank = 0; rank < ranks; ++rank) {
    const Seen& state = states[at(rank)];
    const std::vector<double> owed = spread_out(layout, state, "outer_second_error"),
                              owed_too = spread_out(layout, state, "outer_1_second_error");
    std::vector<double> moved(expected.size());
    for (std::uint64_t step = 1; step <= count; ++step) {
      const Floats g = gradient(layout, rank, step, 1);
      for (std::size_t k = 0; k < g.size(); ++k) moved[k] += in_double(g[k]) / 64;
    }
    each(layout, any_one, [&](std::size_t k) {
      expected[k] +=
          (in_double(from[k]) - moved[k] * in_double(layout_rate(layout, k))) / ranks + owed[k] + owed_too[k];
      found[k] += (in_double(ends[at(rank)][k]) + state.parts.at("traded")[k]) / ranks;
    });
  }
  CHECK(relative_error(layout, found, expected, any_one, 1) < tolerance);
}

TEST_CASE("a meeting whose weights are refused is held again, once they are mended") {
  const Layout layout = matrices();
  for (const double wrong : {-1.0, 0.0})
    on_ranks(2, [&](Threads& transport) {
      double weight = wrong;
      LocalSgd<MomentumSgd<>, Gathered<MedianClip>> recipe{.period = 2, .topology = {.weight = &weight}};
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      const auto step = [&](std::uint64_t k) { optimizer.step(x, gradient(layout, transport.rank(), k, 1)); };
      step(1);
      CHECK_THROWS_AS(step(2), usage_error);
      CHECK_THROWS_AS(step(3), usage_error);
      weight = 1;
      step(4);
      // Ranks have met.
      CHECK(optimizer.steps() == 2);
      Floats mean(x.size());
      optimizer.mean_parameters(x, mean);
      REQUIRE(mean == x);
    });
}

TEST_CASE("of moves that stay the same, what SparseLoCo has sent comes to all of them") {
  Layout layout;
  layout.add({"matrix", {20, 37}}).add({"vector", {300}});
  constexpr std::uint64_t rounds = 160, period = 2;
  auto recipe = sparser(period, 0.1, 1, 1);
  recipe.inner = plain();
  on_ranks(2, [&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    optimizer.learning_rate(1.0F / 64);
    const Floats from = start(layout), g = gradient(layout, transport.rank(), 1, 1);
    const Floats g0 = gradient(layout, 0, 1, 1), g1 = gradient(layout, 1, 1, 1);
    Floats x = from;
    double missing = 0;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (std::uint64_t step = 0; step < period; ++step) optimizer.step(x, g);
      double worst = 0, largest = 0;
      each(layout, any_one, [&](std::size_t k) {
        const double move = period * (in_double(g0[k]) + in_double(g1[k])) / 128;
        worst = std::max(worst,
                         std::abs(in_double(from[k]) - in_double(x[k]) - static_cast<double>(round) * move));
        largest = std::max(largest, std::abs(move));
      });
      missing = worst / (static_cast<double>(round) * largest);
      // What is missing is in the memories: no element waits for longer than some tens of rounds.
      if (round == 10) CHECK(missing > 0.2);
    }
    CHECK(missing < 0.1);
  });
}

TEST_CASE("NoLoCo follows its paper's equations, and sends one vector to one partner") {
  const MomentumSgd<> inner{.weight_decay = 0.1F};
  std::uint64_t turn = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    Paired recipe{.inner = inner, .period = ++turn};
    recipe.outer = {.rate = ranks == 4 ? 1 : 0.7F, .momentum = ranks == 2 ? 0.9F : 0.5F};
    recipe.topology.graph.seed = turn;
    const History ours = train(recipe, ranks);
    reference::PairTraining<reference::MomentumSgd<>> oracle(
        odd_sizes(), at(ranks), {.momentum = in_double(0.9F), .weight_decay = in_double(0.1F)},
        start(odd_sizes()));
    oracle.period = recipe.period;
    oracle.mu = in_double(recipe.outer.momentum);
    oracle.eta = in_double(recipe.outer.rate);
    oracle.partner = [&](int rank, std::uint64_t step) {
      return recipe.topology.graph.partner(rank, ranks, step - 1);
    };
    follows_whole_models(ours, oracle, [&](std::size_t rank, std::uint64_t step) {
      const bool meets = step % recipe.period == 0 && oracle.partner(static_cast<int>(rank), step) >= 0;
      return std::uint64_t{meets};
    });
    if (ranks > 2) CHECK_FALSE(all_alike(ours.back()));
  }
}

TEST_CASE("two ranks of NoLoCo, or all who take an exact mean, are DiLoCo without Nesterov") {
  const Training training;
  const LocalUpdatesFrom<MomentumSgd<>, PairMomentum> exact{.period = 3, .outer = {.momentum = 0.9F}};
  const Bmuf<MomentumSgd<>, Block::classical> heavy_ball{.period = 3,
                                                         .outer = {.rate = 0.7F, .momentum = 0.9F}};
  const Paired paired{.period = 3, .outer = {.momentum = 0.9F}};
  CHECK(gap(train(paired, 2), train(exact, 2)) == 0);
  for (const int ranks : {2, 3, 7}) CHECK(gap(train(exact, ranks), train(heavy_ball, ranks)) < tolerance);
}

TEST_CASE("NoLoCo's ranks go astray around DiLoCo's way, where gradients don't depend on where they are") {
  constexpr int ranks = 6;
  const Layout layout = odd_sizes();
  const auto run_of = [&](const auto& recipe) {
    std::vector<Floats> ends(ranks);
    on_ranks(ranks, [&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      for (std::uint64_t step = 1; step <= 24; ++step) {
        optimizer.learning_rate(0.01F);
        optimizer.step(x, gradient(layout, transport.rank(), step, 1));
      }
      ends[at(transport.rank())] = x;
    });
    return ends;
  };
  const auto paired = run_of(Paired{.period = 3});
  const auto together =
      run_of(Bmuf<MomentumSgd<>, Block::classical>{.period = 3, .outer = {.rate = 0.7F, .momentum = 0.5F}});
  double apart = 0, mean_off = 0;
  each(layout, any_one, [&](std::size_t k) {
    double mean = 0;
    for (const Floats& x : paired) {
      mean += in_double(x[k]) / ranks;
      apart = std::max(apart, std::abs(in_double(x[k]) - in_double(paired[0][k])));
    }
    mean_off = std::max(mean_off, std::abs(mean - in_double(together[0][k])));
  });
  CHECK(apart > 1e-2);
  CHECK(mean_off < 2e-6);
}

TEST_CASE("NoLoCo refuses a momentum that its ranks would not outlive, at construction and later") {
  on_ranks(4, [](Threads& transport) {
    const Layout layout = odd_sizes();
    Paired recipe{.period = 2, .outer = {.momentum = 0.866F}};
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    const Floats g = x;
    optimizer.step(x, g);
    optimizer.step(x, g);
    optimizer.recipe.outer.momentum = 0.9F;
    optimizer.step(x, g);
    CHECK_THROWS_WITH_AS(optimizer.step(x, g),
                         doctest::Contains("among 4 ranks in pairs an outer momentum of 0.9"), usage_error);
    recipe.outer.momentum = 0.868F;
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("Lower the momentum"),
                         usage_error);
    recipe.outer = {.rate = 0, .momentum = 0.5F};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("Raise the rate"),
                         usage_error);
    recipe.outer = {.rate = 2, .momentum = 0};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("Lower the rate"),
                         usage_error);
    recipe = {.average_gradients_until = 1};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("no mean gradient"),
                         usage_error);
    recipe = {.inner_buffers = InnerBuffers::average};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("keep or reset"),
                         usage_error);
  });
}

TEST_CASE("ranks of NoLoCo that draw other pairs are found out at construction") {
  on_ranks(2, [](Threads& transport) {
    Paired recipe;
    recipe.topology.graph.seed = static_cast<std::uint64_t>(transport.rank());
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, odd_sizes()}), doctest::Contains("seed"),
                         mismatch_error);
  });
}

TEST_CASE("DiLoCo over a graph follows its equations, and sends one vector to each neighbour") {
  follows_graph<graph::Ring>({1}, 1, 2, 0);
  follows_graph<graph::Ring>(reference::complete(2), 2, 3, 1);
  follows_graph<graph::Complete>(reference::complete(3), 3, 4, 2);
  follows_graph<graph::Ring>(reference::ring(5), 5, 2, 2);
  follows_graph<graph::SymmetricExponential>(reference::circulant(8, {1, 2, 4, 6, 7}), 8, 3, 5);
}

TEST_CASE("DiLoCo over the complete graph is DiLoCo, and evaluates at the same points") {
  constexpr int ranks = 4;
  const Layout layout = odd_sizes();
  CHECK(gap(train(Gossiping<graph::Complete>{.period = 3}, ranks),
            train(DiLoCo<MomentumSgd<>>{.period = 3}, ranks)) < tolerance);
  const auto points_of = [&](const auto& recipe) {
    std::vector<Floats> points(2, start(layout));
    on_ranks(ranks, [&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      for (int step = 0; step < 6; ++step)
        optimizer.step(x, Quadratics::gradient<float>(at(transport.rank()), x));
      if (transport.rank() != 0) return;
      optimizer.read_out(ReadOut::current, points[0]);
      optimizer.read_out(ReadOut::look_ahead, points[1]);
    });
    return points;
  };
  const auto graph = points_of(Gossiping<graph::Complete>{.period = 3}),
             mean = points_of(DiLoCo<MomentumSgd<>>{.period = 3});
  CHECK(relative_error(layout, mean[0], mean[1], any_one, 1) > 1e-2);
  for (const std::size_t k : {std::size_t{0}, std::size_t{1}})
    CHECK(relative_error(layout, graph[k], mean[k], any_one, 1) < tolerance);
}

TEST_CASE("DiLoCo over a graph refuses one on which its ranks would grow apart, at construction and later") {
  on_ranks(8, [](Threads& transport) {
    const Layout layout = odd_sizes();
    // The least eigenvalue is -1/2.
    Gossiping<graph::Hypercube> recipe{.period = 2, .outer = {.momentum = 0.49F}};
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    const Floats g = x;
    optimizer.step(x, g);
    optimizer.step(x, g);
    optimizer.recipe.outer.momentum = 0.51F;
    optimizer.step(x, g);
    CHECK_THROWS_WITH_AS(optimizer.step(x, g), doctest::Contains("has the eigenvalue -0.5"), usage_error);
    recipe.outer.momentum = 0.51F;
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("Use graph::Lazy"),
                         usage_error);
    static_cast<void>(Optimizer{Gossiping<graph::Lazy<graph::Hypercube>>{}, transport, layout});
    const Gossiping<graph::SymmetricMatrix> smaller{.topology = {.graph = {.weights = {1}}}};
    CHECK_THROWS_WITH_AS((Optimizer{smaller, transport, layout}),
                         doctest::Contains("is 1 x 1, but there are 8 ranks"), usage_error);
    recipe = {.average_gradients_until = 1};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("no mean gradient"),
                         usage_error);
    recipe = {.inner_buffers = InnerBuffers::average};
    CHECK_THROWS_WITH_AS((Optimizer{recipe, transport, layout}), doctest::Contains("keep or reset"),
                         usage_error);
  });
}
