// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "reference/sparse_averaging.hpp"
#include "support.hpp"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/threshold.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// Gradient averaging with sparse compressors: deep gradient compression, EF21 and DIANA against oracles in double,
// and what holds for every selection over every topology.

using namespace terse;
using namespace terse::test;

namespace {

constexpr std::uint64_t steps = 50, loud_from = 10;

bool compressed_one(const Segment& segment) { return segment.compress; }
bool excluded_one(const Segment& segment) { return !segment.compress; }
bool any_one(const Segment&) { return true; }

/// Pieces at word edges, two excluded, one of which is cut; empty and one-element segments; own rates.
Layout edges(bool large) {
  Layout layout;
  layout.add({"w1", {large ? 4097 : 200}});
  layout.add({"none", {0}});
  layout.add({"one", {1}});
  layout.add({"bias", {65}, 2, 0, false});
  layout.add({"w2", {9, 7}, 0.5F});
  layout.add({"w3", {large ? 1000 : 130}, 1, 0.5F});
  layout.add({"seven", {7}, 1, 1, false});
  layout.add({"w4", {64}});
  layout.add({"w5", {65}});
  return layout;
}

std::vector<Floats> gradients(const Layout& layout, int ranks, std::uint64_t step) {
  std::vector<Floats> g;
  for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, loud_from));
  return g;
}

float wavy(std::uint64_t step) { return 1e-2F * (1 + 0.5F * std::sin(static_cast<float>(step))); }
struct Wavy {
  template <class R>
  void operator()(R& recipe, std::uint64_t step) const {
    recipe.learning_rate = wavy(step);
  }
};

/// Bytes of a sparse section of fp32 values; the number of picks first, where it varies.
template <class Count>
auto sparse_section(bool variable, bool positions, Count count) {
  return [=](const Range& range) {
    std::uint64_t bytes = 0;
    for (const Piece& piece : range.pieces()) {
      const auto n = static_cast<std::uint64_t>(piece.count),
                 k = static_cast<std::uint64_t>(count(piece.count));
      bytes += (variable ? 8 : 0) + to_eight(4 * k);
      if (positions) bytes += position_bytes(n, k);
    }
    return bytes;
  };
}

/// The ratio of deep gradient compression's step in stage j of `stages` within `warmup` steps.
double expected_ratio(double ratio, std::uint64_t step, std::uint64_t warmup, std::uint64_t stages) {
  for (std::uint64_t stage = 0; stage < stages; ++stage)
    if (step * stages <= (stage + 1) * warmup + stages - 1 && step <= warmup)
      return std::pow(ratio, static_cast<double>(stage + 1) / static_cast<double>(stages + 1));
  return ratio;
}

/// Where exactly one of two vectors is 0, the oracle must have doubted its selection. Whether there is no such
/// place.
bool same_zeros(const Layout& layout, const std::vector<double>& ours, const std::vector<double>& expected,
                const std::vector<char>& doubted) {
  bool same = true;
  each(layout, compressed_one, [&](std::size_t i) {
    if ((ours[i] == 0) == (expected[i] == 0)) return;
    CAPTURE(i);
    REQUIRE(doubted[i] != 0);
    same = false;
  });
  return same;
}

void check(const Tally& tally) {
  MESSAGE("compared " << tally.compared << " of " << tally.possible << " steps");
  CHECK(tally.compared * 10 >= tally.possible * 9);
}

void compare_dgc(const Layout& layout, int ranks, bool nesterov, Tally& tally) {
  CAPTURE(ranks);
  CAPTURE(nesterov);
  constexpr double ratio = 0.01;
  constexpr std::uint64_t warmup = 18, stages = 4;
  const DeepGradientCompression<> recipe{
      .weight_decay = 0.05F,
      .momentum_correction = {.nesterov = nesterov},
      .compressor = {.selection = {.ratio = ratio, .warmup_steps = warmup, .stages = stages}}};
  reference::DeepGradientCompression::Options options;
  options.momentum = static_cast<double>(recipe.momentum_correction.momentum);
  options.nesterov = nesterov;
  options.weight_decay = static_cast<double>(recipe.weight_decay);
  reference::DeepGradientCompression oracle(layout, ranks, options, start(layout));
  oracle.margin = 2e-5;

  const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Wavy{});
  tally.possible += steps;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    const std::vector<Floats> g = gradients(layout, ranks, step);
    const double share = expected_ratio(ratio, step, warmup, stages);
    CHECK(recipe.compressor.selection.ratio_at(step) == share);
    const auto count = [&](index_t n) { return reference::top_count(share, n); };
    oracle.step(g, static_cast<double>(wavy(step)),
                [&](const Segment& segment) { return count(segment.count); });

    bool same = true;
    std::vector<std::vector<double>> errors, velocities;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      CHECK(now[rank].parameters == now[0].parameters);
      CHECK(sent_in(now[rank]) ==
            formula<AllGather>(layout, ranks, static_cast<int>(rank), sparse_section(true, true, count)));
      errors.push_back(spread_out(layout, now[rank].state, "error"));
      velocities.push_back(spread_out(layout, now[rank].state, "momentum"));
      same = same_zeros(layout, errors.back(), oracle.residuals[rank], oracle.doubted) && same;
    }
    if (!same) {
      // Both right; the oracle goes on from where the recipe is.
      oracle.parameters.assign(now[0].parameters.begin(), now[0].parameters.end());
      oracle.residuals = errors;
      oracle.velocity = velocities;
      continue;
    }
    ++tally.compared;
    CHECK(relative_error(layout, now[0].parameters, oracle.parameters, any_one) < 1e-5);
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      const double typical = rms(layout, g[rank], any_one);
      CHECK(relative_error(layout, errors[rank], oracle.residuals[rank], compressed_one, typical) < 1e-5);
      CHECK(relative_error(layout, velocities[rank], oracle.velocity[rank], compressed_one, typical) < 1e-5);
      // On the mean the library keeps Nesterov's v = mu v + g, the oracle mu v: the same steps.
      std::vector<double> dense = oracle.dense_velocity;
      for (double& v : dense) v /= nesterov ? options.momentum : 1;
      CHECK(relative_error(layout, velocities[rank], dense, excluded_one, typical) < 1e-5);
    }
  }
}

}  // namespace

TEST_CASE("deep gradient compression follows the oracle, the ratio's warm-up and the byte formula") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool nesterov : {false, true}) compare_dgc(edges(ranks == 3), ranks, nesterov, tally);
  check(tally);
}

TEST_CASE("the ratio falls in equal stages, exponentially") {
  const LargestWithWarmup selection{.ratio = 0.001, .warmup_steps = 12};
  const double expected[] = {0.251188643, 0.0630957344, 0.0158489319, 0.00398107171, 0.001};
  for (std::uint64_t step = 1; step <= 20; ++step)
    CHECK(selection.ratio_at(step) ==
          doctest::Approx(expected[std::min<std::uint64_t>((step - 1) / 3, 4)]).epsilon(1e-8));
  const LargestWithWarmup cold{.ratio = 0.001};
  CHECK(cold.ratio_at(1) == 0.001);
}

TEST_CASE("what deep gradient compression sends and keeps is what its momentum gave") {
  const Layout layout = edges(false);
  constexpr int ranks = 3;
  for (const bool nesterov : {false, true}) {
    const DeepGradientCompression<> recipe{.learning_rate = 1,
                                           .momentum_correction = {.nesterov = nesterov},
                                           .compressor = {.selection = {.ratio = 0.05}}};
    const double mu = static_cast<double>(recipe.momentum_correction.momentum);
    const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Unchanged{});
    for (std::uint64_t step = 2; step <= steps; ++step) {
      CAPTURE(step);
      const std::vector<Floats> g = gradients(layout, ranks, step);
      std::vector<double> sent(at(layout.size()));
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Seen &before = ours[step - 2][rank].state, &after = ours[step - 1][rank].state;
        const auto u = spread_out(layout, before, "momentum"), kept = spread_out(layout, after, "momentum");
        const auto r = spread_out(layout, before, "error"), left = spread_out(layout, after, "error");
        each(layout, compressed_one, [&](std::size_t i) {
          const double now = static_cast<double>(g[rank][i]);
          const double velocity = nesterov ? mu * (u[i] + now) : mu * u[i] + now;
          const double gone = r[i] + velocity + (nesterov ? now : 0) - left[i];
          sent[i] += gone / ranks;
          // Momentum stays where nothing was sent, and starts anew where something was.
          CHECK((std::abs(gone) < 1e-4) == (std::abs(kept[i] - velocity) < 1e-5 * (1 + std::abs(velocity))));
          if (std::abs(gone) >= 1e-4) CHECK(kept[i] == 0);
        });
      }
      each(layout, compressed_one, [&](std::size_t i) {
        const auto before = static_cast<double>(ours[step - 2][0].parameters[i]);
        // One segment has half the rate.
        const double moved = before - static_cast<double>(ours[step - 1][0].parameters[i]);
        const bool half = i >= at(layout.segments()[4].offset) && i < at(layout.segments()[5].offset);
        CHECK(std::abs(moved - sent[i] * (half ? 0.5 : 1.0)) < 1e-5 * (10 + std::abs(before)));
      });
    }
  }
}

namespace {

/// Compares an Ef21Sgd run with its oracle; `decoded` says what a rank sent in a step, where the oracle can't.
template <class Recipe>
void compare_ef21(const Recipe& recipe, const Layout& layout, int ranks, bool decoding, Tally& tally) {
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Wavy{});
  reference::Ef21Sgd::Options options;
  options.rate = static_cast<double>(recipe.error_feedback.rate);
  options.dense_start = true;
  options.momentum = static_cast<double>(recipe.momentum_correction.momentum);
  options.nesterov = recipe.momentum_correction.nesterov;
  options.weight_decay = static_cast<double>(recipe.weight_decay);
  const auto part = [&](std::uint64_t step, std::size_t rank, const char* name) {
    return spread_out(layout, ours[step - 1][rank].state, name);
  };
  const auto decode = [&](std::size_t rank, index_t step, const reference::Arena<double>& values) {
    const auto s = static_cast<std::uint64_t>(step);
    std::vector<double> sent = part(s, rank, "own_copy");
    const std::vector<double> before = part(s - 1, rank, "own_copy");
    each(layout, compressed_one, [&](std::size_t i) {
      sent[i] = (sent[i] - before[i]) / options.rate;
      // Natural compression: one of the powers of two around it.
      CHECK(std::abs(sent[i]) < 2 * std::abs(values[i]) + 1e-5);
      CHECK(std::abs(sent[i]) > std::abs(values[i]) / 2 - 1e-5);
      CHECK(sent[i] * values[i] > -1e-10);
    });
    return sent;
  };
  const auto top = [](const Segment& segment) { return reference::top_count(0.05, segment.count); };
  reference::Ef21Sgd oracle(layout, ranks, options, start(layout),
                            decoding ? std::variant<reference::Elements, reference::Decoder>(decode)
                                     : std::variant<reference::Elements, reference::Decoder>(top));
  oracle.margin = 2e-5;

  tally.possible += steps;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    const std::vector<Floats> g = gradients(layout, ranks, step);
    const auto shifts_before = oracle.shifts;
    oracle.step(g, static_cast<double>(wavy(step)));

    const double typical = rms(layout, g[0], any_one);
    std::vector<double> mean(at(layout.size()));
    std::vector<std::vector<double>> own;
    bool same = true;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      CHECK(now[rank].parameters == now[0].parameters);
      CHECK(now[rank].state.parts.at("mean_copy") == now[0].state.parts.at("mean_copy"));
      CHECK(now[rank].state.parts.at("momentum") == now[0].state.parts.at("momentum"));
      own.push_back(part(step, rank, "own_copy"));
      each(layout, compressed_one, [&](std::size_t i) { mean[i] += own[rank][i] / ranks; });
      if (decoding || step == 1) continue;
      // What was picked is what has changed.
      std::vector<double> picked = own[rank], expected = oracle.shifts[rank];
      const std::vector<double> before = part(step - 1, rank, "own_copy");
      each(layout, compressed_one, [&](std::size_t i) {
        picked[i] -= before[i];
        expected[i] -= shifts_before[rank][i];
      });
      same = same_zeros(layout, picked, expected, oracle.doubted) && same;
    }
    const std::vector<double> shift = part(step, 0, "mean_copy"), momentum = part(step, 0, "momentum");
    CHECK(relative_error(layout, shift, mean, compressed_one, typical) <
          1e-6 + 2e-7 * static_cast<double>(step));
    if (!same) {
      oracle.parameters.assign(now[0].parameters.begin(), now[0].parameters.end());
      oracle.shifts = own;
      oracle.shift = shift;
      oracle.momentum = momentum;
      continue;
    }
    ++tally.compared;
    CHECK(relative_error(layout, now[0].parameters, oracle.parameters, any_one) < 1e-5);
    CHECK(relative_error(layout, shift, oracle.shift, compressed_one, typical) < 1e-5);
    CHECK(relative_error(layout, momentum, oracle.momentum, any_one, typical) < 1e-5);
    for (std::size_t rank = 0; rank < now.size(); ++rank)
      CHECK(relative_error(layout, own[rank], oracle.shifts[rank], compressed_one, typical) < 1e-5);
  }
}

}  // namespace

TEST_CASE("EF21 follows the oracle from an exact start") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Ef21Sgd<TopK<>, HeavyBall> recipe{.weight_decay = 0.05F,
                                            .momentum_correction = {.nesterov = ranks % 2 == 0},
                                            .compressor = {.selection = {.ratio = 0.05}}};
    compare_ef21(recipe, edges(ranks == 2), ranks, false, tally);
  }
  check(tally);
}

TEST_CASE("DIANA follows the oracle, given what its quantizer said") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    Ef21Sgd<Natural<>, HeavyBall> recipe{.weight_decay = 0.05F, .error_feedback = {.rate = 0.875F}};
    compare_ef21(recipe, edges(false), ranks, true, tally);
  }
  CHECK(tally.compared == tally.possible);
}

TEST_CASE("EF21 sends all at first, then what the formula says") {
  const Layout layout = edges(true);
  const Ef21Sgd<TopK<>, HeavyBall> recipe{.compressor = {.selection = {.ratio = 0.05}}};
  const History ours = run(recipe, layout, 3, 3, 1, {}, Unchanged{});
  Layout dense;
  for (Segment segment : layout.segments()) {
    segment.compress = false;
    dense.add(segment);
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto nothing = [](const Range&) { return std::uint64_t{0}; };
    CHECK(sent_in(ours[0][at(rank)]) == formula<ScatterGather>(dense, 3, rank, nothing));
    const auto top = [](index_t n) { return reference::top_count(0.05, n); };
    for (const std::size_t step : {std::size_t{1}, std::size_t{2}})
      CHECK(sent_in(ours[step][at(rank)]) ==
            formula<AllGather>(layout, 3, rank, sparse_section(false, true, top)));
  }
}

namespace {

/// What has been sent and what is kept make all gradients so far; without momentum and at rate 1. Calls
/// look(before, after) with the snapshots of each step.
template <class P, class C, class Look, class Section>
void check_conservation(const C& compressor, const Layout& layout, int ranks, Section section, Look look) {
  using Recipe = ErrorFeedbackSgd<C, NoMomentum, P>;
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  const Recipe recipe{.learning_rate = 1, .compressor = compressor};
  const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Unchanged{});
  std::vector<double> expected(at(layout.size()));
  const Floats x = start(layout);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    std::vector<double> kept(at(layout.size()));
    const std::vector<Floats> g = gradients(layout, ranks, step);
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      CHECK(now[rank].parameters == now[0].parameters);
      if constexpr (!std::is_same_v<Section, std::nullptr_t>)
        CHECK(sent_in(now[rank]) == formula<P>(layout, ranks, static_cast<int>(rank), section));
      const std::vector<double> error = spread_out(layout, now[rank].state, "error");
      each(layout, any_one, [&](std::size_t i) { expected[i] += static_cast<double>(g[rank][i]) / ranks; });
      each(layout, compressed_one, [&](std::size_t i) { kept[i] += error[i] / ranks; });
      if (!std::is_same_v<P, ScatterGather>) continue;
      const std::vector<double> second = spread_out(layout, now[rank].state, "second_error");
      each(layout, compressed_one, [&](std::size_t i) { kept[i] += second[i]; });
    }
    double worst = 0, moved = 0;
    for (const Segment& segment : layout.segments())
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        const std::size_t i = at(k);
        const double rate = static_cast<double>(segment.learning_rate_scale);
        const double sent = (static_cast<double>(x[i]) - static_cast<double>(now[0].parameters[i])) / rate;
        worst = std::max(worst, std::abs(sent + kept[i] - expected[i]));
        moved = std::max(moved, std::abs(expected[i]));
      }
    CHECK(worst < 1e-5 * moved);
    if (step > 1) look(ours[step - 2], now);
  }
}

struct DontLook {
  void operator()(const std::vector<Snapshot>&, const std::vector<Snapshot>&) const {}
};

}  // namespace

TEST_CASE("nothing is lost by any selection over any topology") {
  const Layout layout = edges(false);
  const auto fifth = [](index_t n) { return reference::top_count(0.2, n); };
  const auto top = sparse_section(false, true, fifth);
  for (const int ranks : {2, 3, 4, 7}) {
    check_conservation<AllGather>(TopK<>{.selection = {.ratio = 0.2}}, layout, ranks, top, DontLook{});
    check_conservation<Ring>(TopK<>{.selection = {.ratio = 0.2}}, layout, ranks, top, DontLook{});

    // The owner sends the largest of its chunk's mean, piece by piece.
    const std::vector<Range> chunks = layout.filter(layout.range(), true).cut(ranks);
    check_conservation<ScatterGather>(
        TopK<>{.selection = {.ratio = 0.2}}, layout, ranks, top,
        [&](const std::vector<Snapshot>& before, const std::vector<Snapshot>& now) {
          for (std::size_t owner = 0; owner < now.size(); ++owner) {
            const std::vector<double> error = spread_out(layout, now[owner].state, "second_error");
            for (const Piece& piece : chunks[owner].pieces()) {
              const auto rate = static_cast<double>(layout.segments()[at(piece.segment)].learning_rate_scale);
              double smallest = std::numeric_limits<double>::infinity(), largest = 0;
              index_t moved = 0;
              for (std::size_t i = at(piece.offset); i < at(piece.offset + piece.count); ++i) {
                const double step =
                    static_cast<double>(before[0].parameters[i]) - static_cast<double>(now[0].parameters[i]);
                if (step != 0) {
                  ++moved;
                  smallest = std::min(smallest, std::abs(step) / rate);
                  CHECK(error[i] == 0);
                } else {
                  largest = std::max(largest, std::abs(error[i]));
                }
              }
              CHECK(moved <= fifth(piece.count));
              CHECK(largest <= smallest + 1e-5);
            }
          }
        });

    // All ranks and both stages pick the same places, so that the mean passes the second stage whole.
    check_conservation<ScatterGather>(
        RandomK{.selection = {.ratio = 0.2}}, layout, ranks, sparse_section(false, false, fifth),
        [&](const std::vector<Snapshot>& before, const std::vector<Snapshot>& now) {
          const std::vector<double> first = spread_out(layout, now[0].state, "error");
          for (const Snapshot& one : now) {
            const std::vector<double> error = spread_out(layout, one.state, "error");
            const std::vector<double> second = spread_out(layout, one.state, "second_error");
            each(layout, compressed_one, [&](std::size_t i) {
              CHECK(second[i] == 0);
              CHECK((error[i] == 0) == (first[i] == 0));
              if (before[0].parameters[i] != now[0].parameters[i]) CHECK(error[i] == 0);
            });
          }
        });

    check_conservation<ScatterGather>(Threshold<>{.selection = {.threshold = 1, .most_ratio = 0.3}}, layout,
                                      ranks, nullptr, DontLook{});
    check_conservation<Ring>(
        Chain<Uniform<4>, Strata<false>, Largest>{
            .selection = {.first = {.ratio = 0.5}, .second = {.ratio = 0.4}}},
        layout, ranks, nullptr, DontLook{});
    check_conservation<AllGather>(TopK<Whole>{.selection = {.ratio = 0.1}}, layout, ranks, nullptr,
                                  DontLook{});
  }
}

TEST_CASE("where nothing is left out every recipe is momentum SGD") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const Layout layout = edges(ranks == 3);
    const MomentumSgd<> exact{.weight_decay = 0.05F, .momentum_correction = {.nesterov = true}};
    const MomentumSgd<> plain{.weight_decay = 0.05F, .momentum_correction = {.momentum = 0}};
    const History expected = run(exact, layout, ranks, steps, loud_from, {}, Wavy{});
    const History straight = run(plain, layout, ranks, steps, loud_from, {}, Wavy{});
    const auto equals = [&](const auto& recipe, const History& other, double tolerance) {
      CAPTURE(type_name<std::decay_t<decltype(recipe)>>());
      const History ours = run(recipe, layout, ranks, steps, loud_from, {}, Wavy{});
      for (std::uint64_t step = 1; step <= steps; ++step) {
        const Floats &x = ours[step - 1][at(ranks - 1)].parameters, &y = other[step - 1][0].parameters;
        CAPTURE(step);
        if (tolerance == 0)
          CHECK(x == y);
        else
          CHECK(relative_error(layout, x, y, any_one) < tolerance);
      }
    };
    // Sums run in rank order and are divided last, whether by owners or by all: the same bits.
    equals(ErrorFeedbackSgd<TopK<>, HeavyBall, AllGather>{.weight_decay = 0.05F,
                                                          .momentum_correction = {.nesterov = true},
                                                          .compressor = {.selection = {.ratio = 1}}},
           expected, 0);
    equals(ErrorFeedbackSgd<TopK<>, NoMomentum, ScatterGather>{.weight_decay = 0.05F,
                                                               .compressor = {.selection = {.ratio = 1}}},
           straight, 0);
    equals(
        ErrorFeedbackSgd<Threshold<>, NoMomentum, ScatterGather>{
            .weight_decay = 0.05F, .compressor = {.selection = {.threshold = 1e-30F, .most_ratio = 1}}},
        straight, 0);
    // The ring adds up in another order.
    equals(ErrorFeedbackSgd<TopK<>, NoMomentum, Ring>{.weight_decay = 0.05F,
                                                      .compressor = {.selection = {.ratio = 1}}},
           straight, 1e-6);
    // What has been sent has no momentum.
    const Layout all_compressed = Layout::flat(300);
    const DeepGradientCompression<> masked{.compressor = {.selection = {.ratio = 1}}};
    const MomentumSgd<> none{.momentum_correction = {.momentum = 0}};
    const History a = run(masked, all_compressed, ranks, 10, 1, {}, Wavy{});
    const History b = run(none, all_compressed, ranks, 10, 1, {}, Wavy{});
    for (std::size_t step = 0; step < 10; ++step) CHECK(a[step][0].parameters == b[step][0].parameters);
    // EF21 adds differences up.
    equals(Ef21Sgd<TopK<>, HeavyBall>{.weight_decay = 0.05F,
                                      .momentum_correction = {.nesterov = true},
                                      .compressor = {.selection = {.ratio = 1}}},
           expected, 1e-5);
  }
}
