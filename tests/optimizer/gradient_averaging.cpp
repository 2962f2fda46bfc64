// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "reference/gradient_averaging.hpp"
#include "restarts.hpp"
#include "support.hpp"
#include "terse/compressor/natural.hpp"
#include "terse/compressor/ternary.hpp"
#include "terse/error_feedback/averaged_residual.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

// The gradient-averaging recipes with scaled signs, votes and quantizers against oracles in double. The sparse
// ones are in sparse_averaging.cpp.

using namespace terse;
using namespace terse::test;

namespace {

bool compressed_one(const Segment& segment) { return segment.compress; }
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

/// Bytes of a Packed compressor's section.
template <int Bits, int ScaleBytes, int Block = 0>
std::uint64_t packed_section(const Range& range) {
  std::uint64_t units = 0, codes = 0;
  for (const Piece& piece : range.pieces()) {
    const auto n = static_cast<std::uint64_t>(piece.count);
    units += Block == 0 ? 1 : (n + std::uint64_t{Block} - 1) / std::uint64_t{Block};
    codes += Bits < 8 ? (n + 63) / 64 * 8 * Bits : to_eight(n);
  }
  return to_eight(ScaleBytes * units) + codes;
}

/// Goes up and down, and is 0 at the start and twice in a row later.
float wavy(std::uint64_t step) {
  if (step == 1 || step == 20 || step == 21) return 0;
  return 1e-2F * (1 + 0.5F * std::sin(static_cast<float>(step)));
}

struct Variant {
  bool nesterov = false, follows_rate = false;
  float decay = 1, weight_decay = 0;
};

template <class Recipe, class M>
Recipe recipe_of(const Variant& variant) {
  Recipe recipe{.weight_decay = variant.weight_decay,
                .error_feedback = {.decay = variant.decay, .follows_rate = variant.follows_rate}};
  if constexpr (!M::state.empty()) recipe.momentum_correction.nesterov = variant.nesterov;
  return recipe;
}

/// One step's state of all ranks beside the oracle's.
struct Errors {
  const Layout& layout;
  const std::vector<Snapshot>& ours;
  reference::ErrorFeedbackSgd& oracle;
  bool local;      // momentum is each rank's own in compressed segments
  double typical;  // size of what is sent: errors may cancel to nothing

  std::vector<double> part(std::size_t rank, const char* name) const {
    return spread_out(layout, ours[rank].state, name);
  }
  bool has(const char* name) const { return ours[0].state.parts.count(name) != 0; }

  /// Whether both took the same decisions. A sign that differs moves the error by two scales; the oracle must have
  /// doubted it.
  bool agree() const {
    bool same = true;
    const auto look = [&](const std::vector<double>& error, const std::vector<double>& expected) {
      each(layout, compressed_one, [&](std::size_t i) {
        if (std::abs(error[i] - expected[i]) < 0.05 * typical) return;
        CAPTURE(i);
        REQUIRE(oracle.doubted[i] != 0);
        same = false;
      });
    };
    for (std::size_t rank = 0; rank < ours.size(); ++rank) look(part(rank, "error"), oracle.errors[rank]);
    // A sign that differs in the first stage changes the scales of the second one, a little.
    if (same && has("second_error"))
      for (std::size_t rank = 0; rank < ours.size(); ++rank)
        look(part(rank, "second_error"), oracle.server_errors[rank]);
    return same;
  }

  void compare() const {
    // A single parameter may pass through 0.
    const double moving = std::max(rms(layout, oracle.parameters, any_one), 0.1);
    for (std::size_t rank = 0; rank < ours.size(); ++rank) {
      CAPTURE(rank);
      CHECK(relative_error(layout, ours[rank].parameters, oracle.parameters, any_one, moving) < 1e-5);
      const double waiting = std::max(rms(layout, oracle.errors[rank], compressed_one), typical);
      CHECK(relative_error(layout, part(rank, "error"), oracle.errors[rank], compressed_one, waiting) < 1e-5);
      if (has("second_error"))
        CHECK(relative_error(layout, part(rank, "second_error"), oracle.server_errors[rank], compressed_one,
                             typical) < 1e-5);
      if (!has("momentum")) continue;
      const auto excluded = [](const Segment& segment) { return !segment.compress; };
      const auto& momentum = local ? oracle.local_momentum[rank] : oracle.momentum;
      CHECK(relative_error(layout, part(rank, "momentum"), momentum, compressed_one, typical) < 1e-5);
      CHECK(relative_error(layout, part(rank, "momentum"), oracle.momentum, excluded, typical) < 1e-5);
    }
  }

  /// After different decisions, both right, the oracle goes on from where the recipe is.
  void take_over() const {
    oracle.parameters.assign(ours[0].parameters.begin(), ours[0].parameters.end());
    for (std::size_t rank = 0; rank < ours.size(); ++rank) {
      oracle.errors[rank] = part(rank, "error");
      if (has("second_error")) oracle.server_errors[rank] = part(rank, "second_error");
      if (has("momentum")) (local ? oracle.local_momentum[rank] : oracle.momentum) = part(rank, "momentum");
    }
    // In excluded segments it is momentum on the mean in any case.
    if (has("momentum") && local) {
      const std::vector<double> all = part(0, "momentum");
      each(
          layout, [](const Segment& segment) { return !segment.compress; },
          [&](std::size_t i) { oracle.momentum[i] = all[i]; });
    }
  }
};

template <class S, class M, class P>
void compare(const Layout& layout, int ranks, const Variant& variant, Tally& tally) {
  using Recipe = ErrorFeedbackSgd<ScaledSign<S>, M, P>;
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  CAPTURE(layout.size());
  CAPTURE(variant.nesterov);
  CAPTURE(variant.follows_rate);
  CAPTURE(variant.decay);
  constexpr std::uint64_t steps = 50, loud_from = 10;
  constexpr bool local = std::is_same_v<M, LocalMomentumBefore>;

  const auto recipe = recipe_of<Recipe, M>(variant);
  reference::ErrorFeedbackSgd::Options options;
  options.rms = std::is_same_v<S, RootMeanSquare>;
  if constexpr (!M::state.empty())
    options.momentum = static_cast<double>(recipe.momentum_correction.momentum);
  options.nesterov = variant.nesterov;
  options.momentum_before = local;
  options.rescale = variant.follows_rate;
  options.residual_decay = static_cast<double>(variant.decay);
  options.weight_decay = static_cast<double>(variant.weight_decay);
  // What a rank says goes into its own momentum even where nothing moves.
  options.momentum_at_zero_rate = local;
  std::vector<Range> chunks;
  if (std::is_same_v<P, ScatterGather>) chunks = layout.filter(layout.range(), true).cut(ranks);
  reference::ErrorFeedbackSgd oracle(layout, ranks, options, start(layout), chunks);
  oracle.margin = 2e-5;

  const History ours = run(recipe, layout, ranks, steps, loud_from, {},
                           [](Recipe& r, std::uint64_t step) { r.learning_rate = wavy(step); });
  tally.possible += steps;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const std::vector<Snapshot>& now = ours[step - 1];
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, loud_from));
    oracle.step(g, static_cast<double>(wavy(step)));
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(now[at(rank)].parameters == now[0].parameters);
      CHECK(sent_in(now[at(rank)]) == formula<P>(layout, ranks, rank, packed_section<1, 4>));
    }
    const double message = rms(layout, local ? oracle.local_momentum[0] : oracle.errors[0], compressed_one);
    const Errors both{layout, now, oracle, local, std::max(message, rms(layout, g[0], any_one))};
    if (both.agree()) {
      both.compare();
      ++tally.compared;
    } else {
      both.take_over();
    }
  }
}

void check(const Tally& tally) {
  MESSAGE("compared " << tally.compared << " of " << tally.possible << " steps");
  CHECK(tally.compared * 10 >= tally.possible * 9);
}

}  // namespace

TEST_CASE("dist-EF-SGD with block momentum on both sides follows the oracle") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool follows : {false, true})
      compare<MeanAbs, LocalMomentumBefore, ScatterGather>(
          edges(ranks == 3), ranks, {true, follows, follows ? 1.0F : 0.9F, 0.05F}, tally);
  compare<MeanAbs, LocalMomentumBefore, ScatterGather>(edges(false), 2, {false, true, 0.9F, 0}, tally);
  check(tally);
}

TEST_CASE("EF-SGD with momentum on the mean follows the oracle through two stages") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool follows : {false, true})
      compare<MeanAbs, HeavyBall, ScatterGather>(
          edges(ranks == 4), ranks, {ranks % 2 == 0, follows, ranks < 4 ? 0.9F : 1.0F, 0.05F}, tally);
  for (const index_t count : {1, 7, 63, 64, 65, 1000, 4097})
    for (const int ranks : {2, 7})
      compare<MeanAbs, HeavyBall, ScatterGather>(Layout::flat(count), ranks, {true, true, 1, 0}, tally);
  check(tally);
}

TEST_CASE("EF-SGD follows the oracle over all-gather, root mean square") {
  Tally tally;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool follows : {false, true})
      compare<RootMeanSquare, HeavyBall, AllGather>(edges(ranks == 2), ranks,
                                                    {!follows, follows, follows ? 0.9F : 1.0F, 0.05F}, tally);
  check(tally);
}

TEST_CASE("EF-SGD without momentum follows the oracle") {
  Tally tally;
  for (const int ranks : {1, 3, 4})
    for (const bool follows : {false, true})
      compare<RootMeanSquare, NoMomentum, ScatterGather>(edges(false), ranks, {false, follows, 0.9F, 0},
                                                         tally);
  check(tally);
}

TEST_CASE("rates that jump don't throw off errors that follow them") {
  check_jumps(ErrorFeedbackSgd<>{.error_feedback = {.follows_rate = true}});
  check_jumps(ErrorFeedbackSgd<ScaledSign<MeanAbs, PerBlock<4096>>, AveragedResidual<>>{
      .error_feedback = {.follows_rate = true}});
}

TEST_CASE("signSGD takes the oracle's votes, the same ones over both topologies") {
  std::uint64_t parted = 0, ties = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    constexpr std::uint64_t steps = 50, loud_from = 10;
    const Layout layout = edges(ranks == 4);
    const auto rate = [](std::uint64_t step) {
      return 1e-3F * (1 + 0.5F * std::sin(static_cast<float>(step)));
    };
    const auto change = [&](auto& recipe, std::uint64_t step) { recipe.learning_rate = rate(step); };
    const History ours = run(SignSgd<>{}, layout, ranks, steps, loud_from, {}, change);
    const History gathered = run(SignSgd<AllGather>{}, layout, ranks, steps, loud_from, {}, change);

    const SignSgd<> recipe;
    reference::SignSgd::Options options;
    options.beta = static_cast<double>(recipe.momentum_correction.momentum);
    reference::SignSgd oracle(layout, ranks, options, start(layout));
    oracle.margin = 1e-5;
    Floats before = start(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      const std::vector<Snapshot>& now = ours[step - 1];
      std::vector<Floats> g;
      for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, loud_from));
      oracle.step(g, static_cast<double>(rate(step)));
      for (std::size_t rank = 0; rank < now.size(); ++rank) {
        CHECK(now[rank].parameters == now[0].parameters);
        CHECK(now[rank].parameters == gathered[step - 1][rank].parameters);
        CHECK(now[rank].state.parts == gathered[step - 1][rank].state.parts);
        const int r = static_cast<int>(rank);
        CHECK(sent_in(now[rank]) == formula<ScatterGather>(layout, ranks, r, packed_section<1, 0>));
        CHECK(sent_in(gathered[step - 1][rank]) ==
              formula<AllGather>(layout, ranks, r, packed_section<1, 0>));
        CHECK(relative_error(layout, spread_out(layout, now[rank].state, "momentum"), oracle.momentum[rank],
                             compressed_one) < 1e-5);
      }
      for (const Segment& segment : layout.segments())
        for (index_t k = segment.offset; segment.compress && k < segment.offset + segment.count; ++k) {
          const std::size_t i = at(k);
          const float size = rate(step) * segment.learning_rate_scale, x = now[0].parameters[i];
          const double vote = x < before[i] ? 1 : -1;
          CHECK(x == before[i] - static_cast<float>(vote) * size);
          double sum = 0;
          for (const auto& momentum : oracle.momentum) sum += reference::sgn(momentum[i]);
          if (sum == 0) ++ties;
          if (vote == oracle.direction[i]) continue;
          CAPTURE(i);
          CHECK(oracle.doubted[i] != 0);
          ++parted;
          oracle.parameters[i] = static_cast<double>(x);
        }
      CHECK(relative_error(layout, now[0].parameters, oracle.parameters, any_one) < 1e-5);
      before = now[0].parameters;
    }
  }
  CHECK(parted < 50);
  CHECK(ties > 1000);
}

namespace {

/// The mean of many steps' updates is the mean gradient, within five deviations of that mean. Returns the mean
/// square of a single update's error. Where ranks are `alike`, they have one gradient.
template <class Recipe>
double check_unbiased(Recipe recipe, int ranks, bool alike = false) {
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  constexpr std::uint64_t seeds = 4, steps = 400;
  Layout layout;
  layout.add({"w", {130}}).add({"excluded", {9}, 1, 1, false}).add({"v", {70}});
  recipe.learning_rate = 1;
  std::vector<double> sum(at(layout.size())), square(at(layout.size())), exact(at(layout.size()));
  for (int rank = 0; rank < ranks; ++rank) {
    const Floats g = gradient(layout, alike ? 0 : rank, 1, 1);
    each(layout, any_one, [&](std::size_t i) { exact[i] += static_cast<double>(g[i]) / ranks; });
  }
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
      Metered<Threads> transport(raw.split(0, raw.rank()));
      Optimizer optimizer{recipe, transport, layout, Options{.seed = seed}};
      const Floats g = gradient(layout, alike ? 0 : raw.rank(), 1, 1);
      for (std::uint64_t step = 1; step <= steps; ++step) {
        Floats x(at(layout.size()));
        optimizer.step(x, g);
        if (raw.rank() != 0) continue;
        each(layout, any_one, [&](std::size_t i) {
          const double error = -static_cast<double>(x[i]) - exact[i];
          sum[i] += error;
          square[i] += error * error;
        });
      }
    });
  constexpr double count = seeds * steps;
  double total = 0, elements = 0;
  each(layout, any_one, [&](std::size_t i) {
    CAPTURE(i);
    // Bernstein's bound: what is seldom may not have been seen yet.
    CHECK(std::abs(sum[i] / count) < 5 * std::sqrt(square[i]) / count + 5 / count);
    total += square[i] / count, ++elements;
  });
  return total / elements;
}

}  // namespace

TEST_CASE("quantized SGD moves by the mean gradient on average, through one and two stages") {
  double alone = 0;
  for (const int ranks : {1, 2, 3}) {
    const double coarse = check_unbiased(QuantizedSgd<>{.momentum_correction = {.momentum = 0}}, ranks);
    const double ternary = check_unbiased(QuantizedSgd<Ternary<>, NoMomentum>{}, ranks);
    const double fine = check_unbiased(QuantizedSgd<Natural<>, NoMomentum, AllGather>{}, ranks);
    CHECK(fine > 0);
    CHECK(fine < coarse);
    CHECK(coarse < ternary);
    // Ranks round independently, so that even the same gradients' errors average out.
    const double alike = check_unbiased(QuantizedSgd<Natural<>, NoMomentum, AllGather>{}, ranks, true);
    if (ranks == 1) alone = alike;
    CHECK(std::abs(alike * ranks - alone) < 0.1 * alone);
  }
}

TEST_CASE("quantized SGD sends what the formula says, and all ranks move alike") {
  const Layout layout = edges(true);
  const auto check_run = [&](const auto& recipe, int ranks, auto formula_of) {
    const History history = run(recipe, layout, ranks, 3, 1, {}, Unchanged{});
    for (const std::vector<Snapshot>& now : history)
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(now[at(rank)].parameters == now[0].parameters);
        CHECK(sent_in(now[at(rank)]) == formula_of(rank));
      }
  };
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    check_run(QuantizedSgd<>{}, ranks,
              [&](int r) { return formula<ScatterGather>(layout, ranks, r, packed_section<4, 4, 512>); });
    check_run(QuantizedSgd<Ternary<>, NoMomentum>{}, ranks,
              [&](int r) { return formula<ScatterGather>(layout, ranks, r, packed_section<2, 4>); });
    check_run(QuantizedSgd<Natural<>, NoMomentum, AllGather>{}, ranks,
              [&](int r) { return formula<AllGather>(layout, ranks, r, packed_section<8, 4>); });
  }
}
