// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "guards.inc"
#include "reference/lamb.hpp"
#include "terse/checkpoint/checkpoint.hpp"
#include "terse/optimizer/lamb.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"

// Lamb and OneBitLamb against their oracles in double, and what they promise beside the formulas.

namespace {

constexpr std::uint64_t loud_from = 25;
/// Segments that start at 0, that have no gradient until `loud_from`, and both with none ever.
const std::string born = "born", silent = "silent", dead = "dead";

/// Segments at word edges, one excluded, one that straddles chunks, own rates, empty ones.
Layout layers() {
  Layout layout;
  layout.add({"w1", {1025}});
  layout.add({"none", {0}});
  layout.add({"one", {1}});
  layout.add({"bias", {65}, 2, 0, false});
  layout.add({"w2", {9, 7}, 0.5F});
  layout.add({born, {100}, 1, 0.5F});
  layout.add({"eight", {8}, 1, 1, false});
  layout.add({silent, {70}});
  layout.add({dead, {5}});
  layout.add({"w3", {64}, 0.5F, 0});
  return layout;
}

Floats start_of(const Layout& layout) {
  Floats x = start(layout);
  for (const Segment& segment : layout.segments())
    if (segment.name == born || segment.name == dead)
      std::fill_n(x.begin() + segment.offset, segment.count, 0.0F);
  return x;
}

/// Segments differ in size, so that scales differ from 1, and coefficients meet their bounds.
Floats gradient_of(const Layout& layout, int rank, std::uint64_t step) {
  Floats g = gradient(layout, rank, step, loud_from);
  float size = 1;
  for (const Segment& segment : layout.segments()) {
    const bool quiet = segment.name == dead || (segment.name == silent && step < loud_from);
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) g[at(k)] *= quiet ? 0 : size;
    size *= 1.5F;
  }
  return g;
}

float rate_of(std::uint64_t step) { return 1e-2F / (1 + 0.1F * static_cast<float>(step)); }

/// [step - 1][rank]
template <class R>
History trial(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps, const Options& options) {
  History history(steps, std::vector<Snapshot>(at(ranks)));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, masks_any(options)};
    Floats x = start_of(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      optimizer.recipe.learning_rate = rate_of(step);
      optimizer.step(x, gradient_of(layout, transport.rank(), step));
      Snapshot& snapshot = history[step - 1][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.parameters = x;
    }
  });
  return history;
}

std::vector<Floats> gradients_of(const Layout& layout, int ranks, std::uint64_t step) {
  std::vector<Floats> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(gradient_of(layout, rank, step));
  return all;
}

bool any_one(const Segment&) { return true; }
bool compressed_one(const Segment& segment) { return segment.compress; }

/// Options that both recipes have, for the oracle.
template <class R>
reference::Lamb<>::Options described(const R& recipe, float clip) {
  reference::Lamb<>::Options options;
  options.beta1 = static_cast<double>(recipe.beta1);
  options.beta2 = static_cast<double>(recipe.beta2);
  options.epsilon = static_cast<double>(recipe.epsilon);
  options.weight_decay = static_cast<double>(recipe.weight_decay);
  options.bias_correction = recipe.bias_correction;
  options.min_coefficient = static_cast<double>(recipe.min_coefficient);
  options.max_coefficient = static_cast<double>(recipe.max_coefficient);
  options.clip_norm = static_cast<double>(clip);
  return options;
}

}  // namespace

TEST_CASE("Lamb follows the oracle, with and without bias correction, decay and clipping") {
  const Layout layout = layers();
  index_t low = 0, high = 0, without_norm = 0;
  double worst = 0;
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool corrected : {false, true})
      for (const bool everything : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(corrected);
        CAPTURE(everything);
        Lamb<> recipe{.bias_correction = corrected};
        float clip = unbounded;
        if (everything) {
          recipe.weight_decay = 0.1F;
          recipe.min_coefficient = 0.3F;
          recipe.max_coefficient = 0.8F;
          clip = 3;
        }
        reference::Lamb<>::Options options = described(recipe, clip);
        const History ours = trial(recipe, layout, ranks, 40, {.clip_norm = clip});
        reference::Lamb<> oracle(layout, ranks, options, start_of(layout));
        for (std::uint64_t step = 1; step <= 40; ++step) {
          CAPTURE(step);
          oracle.step(gradients_of(layout, ranks, step), static_cast<double>(rate_of(step)));
          const std::vector<Snapshot>& now = ours[step - 1];
          const double error = relative_error(layout, now[0].parameters, oracle.parameters, any_one);
          worst = std::max(worst, error);
          CHECK(error < 1e-5);
          CHECK(relative_error(layout, now[0].state.parts.at("momentum"), oracle.momentum, any_one) < 1e-5);
          CHECK(relative_error(layout, now[0].state.parts.at("variance"), oracle.variance, any_one) < 1e-5);
          for (const Snapshot& other : now) CHECK(other.parameters == now[0].parameters);
        }
        low += oracle.clipped_low;
        high += oracle.clipped_high;
        without_norm += oracle.without_norm;
      }
  MESSAGE("largest error " << worst << ", coefficients at the lower bound " << low << ", at the upper "
                           << high << ", without a norm " << without_norm);
  CHECK(low > 100);
  CHECK(high > 100);
  CHECK(without_norm > 100);
}

TEST_CASE("Lamb moves what starts at 0 at the plain rate, and leaves what has no gradient") {
  ThreadGroup(1, std::chrono::seconds(5)).run([&](Threads& transport) {
    Layout layout;
    layout.add({"w", {64}});
    Optimizer born_at_zero{Lamb<>{.learning_rate = 0.5F}, transport, layout, masks_any()};
    Floats y(64);
    born_at_zero.step(y, Floats(64, 1.0F));
    for (const float value : y) CHECK(value == doctest::Approx(-0.5).epsilon(1e-6));
    Optimizer without_gradient{Lamb<>{.learning_rate = 0.5F}, transport, layout, masks_any()};
    Floats z(64, 2.0F);
    without_gradient.step(z, Floats(64));
    CHECK(z == Floats(64, 2.0F));
  });
}

namespace {

struct Count {
  Tally tally;
  index_t limited = 0, bounded = 0, free = 0;
  double parameters = 0, momentum = 0, fresh = 0, coefficients = 0;
};

/// Whether float and double agree on all signs. Where they don't, the decision must have been within rounding
/// of zero: from there on the two runs are different ones, both right.
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

double relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  double worst = 0;
  for (std::size_t s = 0; s < theirs.size(); ++s) {
    const double distance = std::abs(ours[s] - theirs[s]);
    if (!(distance <= worst * theirs[s])) worst = theirs[s] > 0 ? distance / theirs[s] : distance;
  }
  return worst;
}

template <class Topo>
void compare_one_bit(int ranks, bool everything, Count& count) {
  using Recipe = OneBitLamb<Topo>;
  CAPTURE(type_name<Recipe>());
  CAPTURE(ranks);
  CAPTURE(everything);
  constexpr std::uint64_t freeze = 20, steps = 50;
  const Layout layout = layers();

  Recipe recipe{.beta2 = 0.95F, .preconditioner = {.freeze = AtStep{freeze}}};
  float clip = unbounded;
  if (everything) {
    recipe.weight_decay = 0.1F;
    recipe.bias_correction = true;
    recipe.min_coefficient = 0.3F;
    recipe.max_coefficient = 0.8F;
    recipe.coefficient_beta = 0.7F;
    recipe.min_factor = 0.9F;
    recipe.max_factor = 1.2F;
    recipe.factor_threshold = 0.02F;
    recipe.preconditioner.update_clip = 0.5F;
    clip = 10;
  }
  reference::OneBitLamb<>::Options options;
  options.lamb = described(recipe, clip);
  options.topology =
      std::is_same_v<Topo, AllGather> ? reference::Topology::all_gather : reference::Topology::scatter_gather;
  options.freeze = freeze;
  options.coefficient_beta = static_cast<double>(recipe.coefficient_beta);
  options.min_factor = static_cast<double>(recipe.min_factor);
  options.max_factor = static_cast<double>(recipe.max_factor);
  options.factor_threshold = static_cast<double>(recipe.factor_threshold);
  options.update_clip = static_cast<double>(recipe.preconditioner.update_clip);

  const History ours = trial(recipe, layout, ranks, steps, {.clip_norm = clip});
  reference::OneBitLamb<> oracle(layout, ranks, options, start_of(layout));
  count.tally.possible += steps;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    oracle.step(gradients_of(layout, ranks, step), static_cast<double>(rate_of(step)));
    const std::vector<Snapshot>& now = ours[step - 1];
    const auto& first = now[0].state.parts;
    if (oracle.is_frozen && !same_signs(layout, first.at("momentum"), *oracle.exchange)) return;
    const double x = relative_error(layout, now[0].parameters, oracle.lamb.parameters, any_one);
    const double m = relative_error(layout, first.at("momentum"), oracle.lamb.momentum, any_one);
    const double c = relative(first.at("frozen_coefficients"), oracle.frozen);
    count.parameters = std::max(count.parameters, x);
    count.momentum = std::max(count.momentum, m);
    count.coefficients = std::max(count.coefficients, c);
    CHECK(x < 1e-5);
    CHECK(m < 1e-5);
    CHECK(c < 1e-5);
    for (const Snapshot& other : now) {
      CHECK(other.parameters == now[0].parameters);
      for (const char* part : {"momentum", "variance", "fresh_variance", "factors", "scales"})
        CHECK(other.state.parts.at(part) == first.at(part));
    }
    ++count.tally.compared;
    if (step <= freeze) continue;
    CHECK(relative(first.at("scales"), oracle.scales) < 1e-5);
    const double v = relative_error(layout, first.at("fresh_variance"), oracle.fresh, compressed_one);
    count.fresh = std::max(count.fresh, v);
    CHECK(v < 1e-5);
    for (std::size_t s = 0; s < oracle.factors.size(); ++s)
      if (layout.segments()[s].compress && layout.segments()[s].count > 0)
        CHECK(first.at("factors")[s] == doctest::Approx(oracle.factors[s]).epsilon(1e-5));
    const double scaled = rms(layout, oracle.exchange->momentum, compressed_one);
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      const Seen& state = now[rank].state;
      CHECK(relative_error(layout, state.parts.at("error"), oracle.exchange->residuals[rank], compressed_one,
                           scaled) < 1e-5);
      if (state.parts.contains("second_error"))
        CHECK(relative_error(layout, spread_out(layout, state, "second_error"),
                             oracle.exchange->server_residuals[rank], compressed_one, scaled) < 1e-5);
    }
  }
  count.limited += oracle.limited;
  count.bounded += oracle.bounded;
  count.free += oracle.free;
}

}  // namespace

TEST_CASE("1-bit LAMB follows the oracle through both stages") {
  Count count;
  for (const int ranks : {1, 2, 3, 7})
    for (const bool everything : {false, true}) {
      compare_one_bit<ScatterGather>(ranks, everything, count);
      if (ranks == 3) compare_one_bit<AllGather>(ranks, everything, count);
    }
  MESSAGE("compared " << count.tally.compared << " of " << count.tally.possible
                      << " steps; largest errors: x " << count.parameters << ", m " << count.momentum
                      << ", v~ " << count.fresh << ", frozen c " << count.coefficients << "; factors limited "
                      << count.limited << ", at a bound " << count.bounded << ", free " << count.free);
  CHECK(count.tally.compared * 10 >= count.tally.possible * 9);
  CHECK(count.limited > 50);
  CHECK(count.bounded > 50);
  CHECK(count.free > 50);
}

TEST_CASE("scales make all momenta of one size, and those that are 0 or excluded keep theirs") {
  const Layout layout = layers();
  const History ours = trial(OneBitLamb<>{.preconditioner = {.freeze = AtStep{5}}}, layout, 2, 6, {});
  const auto& scales = ours[5][0].state.parts.at("scales");
  const auto& momentum = ours[4][0].state.parts.at("momentum");
  double common = 0;
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const Segment& segment = layout.segments()[s];
    CAPTURE(segment.name);
    if (!segment.compress || segment.count == 0 || segment.name == silent || segment.name == dead) {
      CHECK(scales[s] == 1);
      continue;
    }
    double square = 0;
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
      square += momentum[at(k)] * momentum[at(k)];
    const double size = std::sqrt(square / static_cast<double>(segment.count)) * scales[s];
    if (common == 0) common = size;
    CHECK(size == doctest::Approx(common).epsilon(1e-5));
  }
  CHECK(common > 0);
}

TEST_CASE("what has no momentum at the freeze stays, and a coefficient that never left 1 is 1") {
  const Layout layout = layers();
  // c is 1 in the only step of full precision where x is 0.
  const OneBitLamb<> recipe{.preconditioner = {.freeze = AtStep{1}}};
  const History ours = trial(recipe, layout, 2, 40, {});
  const Floats begin = start_of(layout);
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const Segment& segment = layout.segments()[s];
    const auto now = ours[39][0].parameters.begin() + segment.offset;
    const auto& parts = ours[39][0].state.parts;
    if (segment.name == silent) {
      CHECK(std::equal(now, now + segment.count, begin.begin() + segment.offset));
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
        CHECK(parts.at("error")[at(k)] == 0);
    }
    if (segment.name == born) {
      CHECK(parts.at("frozen_coefficients")[s] == 0);
      const double rate = static_cast<double>(rate_of(2)) * ours[1][0].state.parts.at("factors")[s];
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        const double m = ours[1][0].state.parts.at("momentum")[at(k)], d = parts.at("variance")[at(k)];
        const double moved = static_cast<double>(ours[1][0].parameters[at(k)]) -
                             static_cast<double>(ours[0][0].parameters[at(k)]);
        CHECK(moved == doctest::Approx(-rate * std::clamp(m * d, -10.0, 10.0)).epsilon(1e-4));
      }
    }
  }
  for (const Snapshot& one : ours[39]) CHECK(all_finite(one.state, one.parameters));
}

TEST_CASE("a segment without gradients until after the freeze wakes up") {
  // Its momentum fades, but not to 0, and a scale that made it as large as the other one would overflow.
  Layout layout;
  layout.add({"awake", {70}}).add({"asleep", {70}});
  ThreadGroup(1, std::chrono::seconds(20)).run([&](Threads& transport) {
    constexpr std::uint64_t freeze = 430;
    Optimizer optimizer{OneBitLamb<>{.preconditioner = {.freeze = AtStep{freeze}}}, transport, layout,
                        masks_any()};
    Floats x = start(layout);
    const std::size_t asleep = at(layout.segments()[1].offset);
    for (std::uint64_t step = 1; step <= freeze + 20; ++step) {
      Floats g(at(layout.size()), 1.0F);
      if (step > 2 && step < freeze + 10) std::fill(g.begin() + layout.segments()[1].offset, g.end(), 0.0F);
      const float before = x[asleep];
      optimizer.step(x, g);
      if (step >= freeze + 10) CHECK(x[asleep] < before);
    }
    Seen seen;
    optimizer.walk(seen);
    CHECK(seen.parts.at("scales")[1] == 0x1p24);
  });
}

namespace {

/// Steps 1 ... `saved` with one freeze step, then on with another in an optimizer made anew. Returns what each
/// rank has at the end, and `frozen_at`, the last step with full precision.
std::vector<Snapshot> resumed(std::uint64_t freeze, std::uint64_t saved, std::uint64_t freeze_then,
                              std::uint64_t steps, std::uint64_t& frozen_at) {
  const Layout layout = layers();
  std::vector<Snapshot> last(3);
  frozen_at = 0;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("terse-lamb-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const auto file = folder / std::to_string(transport.rank());
    Floats x = start_of(layout);
    const auto go = [&](Optimizer<OneBitLamb<>, Threads>& optimizer, std::uint64_t until) {
      while (optimizer.steps() < until) {
        const std::uint64_t step = optimizer.steps() + 1;
        optimizer.recipe.learning_rate = rate_of(step);
        if (transport.rank() == 0 && optimizer.full_precision()) frozen_at = step;
        optimizer.step(x, gradient_of(layout, transport.rank(), step));
      }
    };
    OneBitLamb<> recipe{.weight_decay = 0.01F, .preconditioner = {.freeze = AtStep{freeze}}};
    {
      Optimizer optimizer{recipe, transport, layout, masks_any()};
      go(optimizer, saved);
      checkpoint::save(file, optimizer, x);
    }
    recipe.preconditioner.freeze = AtStep{freeze_then};
    std::fill(x.begin(), x.end(), 0.0F);
    Optimizer optimizer{recipe, transport, layout, masks_any()};
    checkpoint::load(file, optimizer, x);
    go(optimizer, steps);
    optimizer.walk(last[at(transport.rank())].state);
    last[at(transport.rank())].parameters = x;
  });
  std::filesystem::remove_all(folder);
  return last;
}

void check_equal(const std::vector<Snapshot>& one, const std::vector<Snapshot>& other) {
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    CHECK(one[rank].parameters == other[rank].parameters);
    CHECK(one[rank].parameters == one[0].parameters);
    CHECK(one[rank].state.parts == other[rank].state.parts);
  }
}

}  // namespace

TEST_CASE("1-bit LAMB resumes to the bit, before the freeze, at it and after it") {
  std::uint64_t frozen_at = 0;
  // A checkpoint of the last step is one that nothing hangs on.
  const std::vector<Snapshot> whole = resumed(10, 30, 10, 30, frozen_at);
  CHECK(frozen_at == 10);
  for (const std::uint64_t saved : std::initializer_list<std::uint64_t>{4, 9, 10, 11, 20}) {
    CAPTURE(saved);
    check_equal(resumed(10, saved, 10, 30, frozen_at), whole);
    CHECK(frozen_at == 10);
  }
}

TEST_CASE("resumed with another freeze step") {
  std::uint64_t frozen_at = 0;
  // Later, before the freeze: as if it had been the freeze step from the start.
  check_equal(resumed(10, 4, 15, 30, frozen_at), resumed(15, 30, 15, 30, frozen_at));
  CHECK(frozen_at == 15);
  // After the freeze there is no way back.
  check_equal(resumed(10, 12, 20, 30, frozen_at), resumed(10, 30, 10, 30, frozen_at));
  CHECK(frozen_at == 10);
  // Below the steps done: the next step is the last one with full precision, and the fresh variance starts there.
  check_equal(resumed(20, 12, 5, 30, frozen_at), resumed(13, 30, 13, 30, frozen_at));
  CHECK(frozen_at == 13);
}

TEST_CASE("steps allocate nothing, and ranks agree on gradients that are not finite") {
  const OneBitLamb<> recipe{.weight_decay = 0.01F, .preconditioner = {.freeze = AtStep{5}}};
  check_allocations(Lamb<>{}, {});
  check_allocations(recipe, {});
  check_allocations(recipe, {.clip_norm = 1});
  check_policies(recipe);
  check_throw(Lamb<>{});
  check_throw(recipe);
}

TEST_CASE("a gradient that is not finite leaves coefficients and factors as they were") {
  const Layout layout = layers();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{OneBitLamb<>{.preconditioner = {.freeze = AtStep{3}}}, transport, layout,
                        masks_any()};
    Floats x = start_of(layout);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      Seen before, after;
      optimizer.walk(before);
      Floats g = gradient_of(layout, transport.rank(), step);
      if (transport.rank() == 1) g[0] = not_a_number;
      CHECK_THROWS_AS(optimizer.step(x, g), non_finite_error);
      optimizer.walk(after);
      for (const char* part :
           {"momentum", "variance", "fresh_variance", "frozen_coefficients", "factors", "scales"})
        CHECK(before.parts.at(part) == after.parts.at(part));
      optimizer.step(x, gradient_of(layout, transport.rank(), step));
    }
  });
}

TEST_CASE("gradients of the largest size that is finite leave nothing behind that is not") {
  Layout layout;
  layout.add({"w", {70}}).add({"excluded", {9}, 1, 1, false});
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{OneBitLamb<>{.preconditioner = {.freeze = AtStep{3}}}, transport, layout,
                        masks_any()};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 40; ++step) {
      // Signs give small momenta the size of large ones, to and fro: that stands for gradients thirty times as large, whose
      // squares overflow.
      Floats g(at(layout.size()), 1.0F);
      if (step > 3)
        for (std::size_t k = 0; k < g.size(); ++k) g[k] = k % 2 == 0 ? 0x1p61F : 0.0F;
      optimizer.step(x, g);
      Seen seen;
      optimizer.walk(seen);
      CAPTURE(step);
      CHECK(all_finite(seen, x));
    }
  });
}

TEST_CASE("both stages send what 1-bit Adam sends") {
  const Layout layout = layers();
  const auto bytes = [&](const auto& recipe, int ranks) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> sent;
    for (const std::vector<Snapshot>& step : run(recipe, layout, ranks, 8, 1, {}, Unchanged{}))
      for (const Snapshot& one : step) sent.emplace_back(one.reduced, one.spread);
    return sent;
  };
  for (const int ranks : {1, 3})
    CHECK(bytes(OneBitLamb<>{.preconditioner = {.freeze = AtStep{4}}}, ranks) ==
          bytes(OneBitAdam<>{.preconditioner = {.freeze = AtStep{4}}}, ranks));
}
