// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <set>

#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_mixing.hpp"
#include "guards.inc"
#include "reference/zero_one_adam.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/zero_one_adam.hpp"

// ZeroOneAdam against its oracle in double, and what it promises beside the formulas. All runs are over one type of
// transport: fewer optimizers to compile.

namespace {

using Signs = ZeroOneAdam<>;
using Exactly = ZeroOneAdam<Dense, ScatterGather, NoErrorFeedback>;
using MeteredThreads = Metered<Threads>;

bool any_one(const Segment&) { return true; }
bool compressed_one(const Segment& segment) { return segment.compress; }
bool moving_one(const Segment& segment) { return segment.learning_rate_scale > 0; }

/// Segments at word edges, excluded, empty, standing still and with own rates; one straddles chunks.
Layout layers() {
  Layout layout;
  layout.add({"w1", {321}});
  layout.add({"none", {0}});
  layout.add({"one", {1}});
  layout.add({"bias", {65}, 2, 0, false});
  layout.add({"w2", {9, 7}, 0.5F});
  layout.add({"fixed", {5}, 0});
  layout.add({"w3", {130}, 1, 0.5F});
  layout.add({"eight", {8}, 1, 1, false});
  return layout;
}

/// Exact averages in steps 1, 2, 4, 6 and 10, meetings in 13 ... 16, 18, 20, 24, 28 ...
template <class R>
R briefly() {
  return {.learning_rate = 1e-2F,
          .beta2 = 0.95F,
          .variance_freeze_step = 12,
          .variance_updates = 2,
          .local_interval_steps = 4,
          .most_local_steps = 4};
}
constexpr std::uint64_t last_step = 40;

/// 0 in a step of the first stage, in two within a period, and in a whole one.
float changing_rate(std::uint64_t step) {
  const bool none = step == 5 || step == 26 || step == 27 || (step >= 33 && step <= 36);
  return none ? 0 : 1e-2F / (1 + 0.1F * static_cast<float>(step));
}

/// What becomes of each step by the closed form: the j-th exact average, from 0, comes 2^(j / variance_updates) steps
/// after the one before.
enum class Kind { exact, compressed, alone, meeting };
template <class R>
std::vector<Kind> schedule(const R& recipe, std::uint64_t steps) {
  std::vector<Kind> kinds(steps + 1, Kind::compressed);
  std::uint64_t at = 0;
  for (std::uint64_t j = 0;; ++j) {
    at += std::uint64_t{1} << (j / recipe.variance_updates);
    if (at > std::min(steps, recipe.variance_freeze_step)) break;
    kinds[at] = Kind::exact;
  }
  std::uint64_t alone = 0;
  for (std::uint64_t step = recipe.variance_freeze_step + 1; step <= steps; ++step) {
    const std::uint64_t doublings = (step - recipe.variance_freeze_step - 1) / recipe.local_interval_steps;
    const std::uint64_t interval = std::min(std::uint64_t{1} << doublings, recipe.most_local_steps);
    const bool meets = ++alone >= interval;
    if (meets) alone = 0;
    kinds[step] = meets ? Kind::meeting : Kind::alone;
  }
  return kinds;
}

struct Count {
  Tally tally;
  index_t bounded = 0, still = 0;
  double parameters = 0, momentum = 0, error = 0, gap = 0;
};

/// Recipe and oracle side by side; everything there is, after every step.
template <class R>
void compare_oracle(const R& recipe, int ranks, float clip, bool changes, std::uint64_t loud_from,
                    double tolerance, Count& count) {
  CAPTURE(type_name<R>());
  CAPTURE(ranks);
  CAPTURE(changes);
  CAPTURE(loud_from);
  const Layout layout = layers();
  reference::ZeroOneAdam<>::Options options;
  options.beta1 = static_cast<double>(recipe.beta1);
  options.beta2 = static_cast<double>(recipe.beta2);
  options.epsilon = static_cast<double>(recipe.epsilon);
  options.weight_decay = static_cast<double>(recipe.weight_decay);
  options.update_clip = static_cast<double>(recipe.update_clip);
  options.clip_norm = static_cast<double>(clip);
  options.freeze = static_cast<index_t>(recipe.variance_freeze_step);
  options.variance_updates = static_cast<index_t>(recipe.variance_updates);
  options.local_interval_steps = static_cast<index_t>(recipe.local_interval_steps);
  options.most_local_steps = static_cast<index_t>(recipe.most_local_steps);
  options.lossless = std::is_same_v<R, Exactly>;
  const auto rate = [&](std::uint64_t step) { return changes ? changing_rate(step) : recipe.learning_rate; };

  const History ours = run(recipe, layout, ranks, last_step, loud_from, {.clip_norm = clip},
                           [&](R& r, std::uint64_t step) { r.learning_rate = rate(step); });
  reference::ZeroOneAdam<> oracle(layout, ranks, options, start(layout));
  count.tally.possible += last_step;
  for (std::uint64_t step = 1; step <= last_step; ++step) {
    CAPTURE(step);
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, loud_from));
    oracle.step(g, static_cast<double>(rate(step)));
    const bool frozen = step >= recipe.variance_freeze_step, apart = oracle.rate_sum[0] > 0;
    const double typical = rms(layout, oracle.exchange.momentum, compressed_one);
    double x = 0, m = 0, e = 0;
    for (std::size_t rank = 0; rank < at(ranks); ++rank) {
      const Snapshot& mine = ours[step - 1][rank];
      const auto& parts = mine.state.parts;
      const auto error_of = [&](const char* name, const auto& theirs) {
        return relative_error(layout, parts.at(name), theirs, any_one);
      };
      x = std::max(x, relative_error(layout, mine.parameters, oracle.parameters[rank], any_one));
      m = std::max({m, error_of("momentum", oracle.momentum[rank]), error_of("moves", oracle.moves[rank])});
      m = std::max(m, error_of("variance", frozen ? oracle.inverse() : oracle.variance));
      // Afterwards the oracle's has decayed, and ours notes that beside it.
      if (frozen && !apart) x = std::max(x, error_of("anchor", oracle.anchor));
      if (!parts.contains("error")) continue;
      e = std::max(e, relative_error(layout, spread_out(layout, mine.state, "error"),
                                     oracle.exchange.residuals[rank], compressed_one, typical));
      e = std::max(e, relative_error(layout, spread_out(layout, mine.state, "second_error"),
                                     oracle.exchange.server_residuals[rank], compressed_one, typical));
    }
    // A sign within rounding of zero: from there on the two runs are different ones, both right.
    if (std::max({x, m, e}) >= tolerance && oracle.exchange.ambiguous > 0) return;
    CHECK(x < tolerance);
    CHECK(m < tolerance);
    CHECK(e < tolerance);
    for (std::size_t rank = 1; rank < at(ranks); ++rank)
      CHECK((ours[step - 1][rank].parameters == ours[step - 1][0].parameters) == !apart);
    ++count.tally.compared;
    count.parameters = std::max(count.parameters, x);
    count.momentum = std::max(count.momentum, m);
    count.error = std::max(count.error, e);
  }
  count.bounded += oracle.bounded;
  count.still += oracle.still;
  count.gap = std::max(count.gap, oracle.gap);
}

template <class R>
R with_everything() {
  R recipe = briefly<R>();
  recipe.weight_decay = 0.5F;
  recipe.update_clip = 3;
  return recipe;
}

void report(const Count& count) {
  MESSAGE("compared " << count.tally.compared << " of " << count.tally.possible
                      << " steps; largest errors: x " << count.parameters << ", moments " << count.momentum
                      << ", errors " << count.error << "; bounded " << count.bounded << ", without variance "
                      << count.still << "; gap " << count.gap);
  CHECK(count.tally.compared * 10 >= count.tally.possible * 9);
  CHECK(count.still > 0);
}

}  // namespace

TEST_CASE("signs follow the oracle through both stages, and ranks differ between meetings alone") {
  Count count;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    // Silent coordinates get their gradient between two exact averages, and after the freeze.
    if (ranks == 3) compare_oracle(briefly<Signs>(), ranks, unbounded, false, 8, 5e-6, count);
    compare_oracle(with_everything<Signs>(), ranks, 3, true, 25, 5e-6, count);
  }
  report(count);
  CHECK(count.bounded > 100);
}

TEST_CASE("without compression they follow it more closely, and meet at the mean of where they are") {
  Count count;
  compare_oracle(with_everything<Exactly>(), 3, 3, true, 8, 2e-6, count);
  Exactly free = with_everything<Exactly>();
  free.update_clip = unbounded;
  count.gap = 0;
  for (const int ranks : {1, 2, 3, 4, 7}) compare_oracle(free, ranks, unbounded, true, 25, 2e-6, count);
  CHECK(count.gap < 1e-14);
  report(count);
}

TEST_CASE("the variance is brought up to date as often as the closed form says") {
  Signs recipe{.variance_freeze_step = 12500, .variance_updates = 16};
  const std::vector<Kind> kinds = schedule(recipe, 12500);
  // 16 (2^9 - 1) = 8176 steps at intervals 1 ... 256, then 8 of 512.
  CHECK(std::count(kinds.begin(), kinds.end(), Kind::exact) == 9 * 16 + 8);
  ThreadGroup(1, std::chrono::seconds(20)).run([&](Threads& raw) {
    MeteredThreads transport(raw.split(0, 0));
    Optimizer optimizer{recipe, transport, Layout::flat(1)};
    Floats x(64), g(64, 1.0F);
    std::uint64_t wrong = 0;
    for (std::uint64_t step = 1; step <= 12500; ++step) {
      wrong += optimizer.full_precision() != (kinds[step] == Kind::exact);
      optimizer.step(x, g);
    }
    CHECK(wrong == 0);
    // One rank's momentum moves in steps that compress, too.
    Seen seen;
    optimizer.walk(seen);
    CHECK(seen.parts.at("momentum")[0] == doctest::Approx(1).epsilon(1e-5));
  });
}

TEST_CASE("each step sends the bytes of its kind, and nothing between meetings") {
  const Layout layout = layers();
  const auto signs = [](const Range& some) {
    std::uint64_t words = 0;
    for (const Piece& piece : some.pieces()) words += static_cast<std::uint64_t>(aligned(piece.count)) / 8;
    return to_eight(4 * static_cast<std::uint64_t>(some.pieces().size())) + words;
  };
  Layout exact;
  for (Segment segment : layout.segments()) {
    segment.compress = false;
    exact.add(segment);
  }
  for (const std::uint64_t most : std::initializer_list<std::uint64_t>{4, 1, 3}) {
    Signs recipe = briefly<Signs>();
    recipe.most_local_steps = most;
    const std::vector<Kind> kinds = schedule(recipe, last_step);
    CHECK(std::set<Kind>(kinds.begin(), kinds.end()).size() == (most == 1 ? 3 : 4));
    for (const int ranks : {1, 3})
      ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
        MeteredThreads transport(raw.split(0, raw.rank()));
        Optimizer optimizer{recipe, transport, layout, masks_any()};
        Floats x = start(layout);
        for (std::uint64_t step = 1; step <= last_step; ++step) {
          const auto sent = [&] {
            return transport.traffic().bytes_sent() - transport.traffic()[Phase::setup].bytes_sent;
          };
          const std::uint64_t before = sent();
          optimizer.step(x, gradient(layout, raw.rank(), step, 1));
          Sent expected{};
          if (kinds[step] == Kind::exact)
            expected = formula<ScatterGather>(exact, ranks, raw.rank(), [](const Range&) { return 0U; });
          else if (kinds[step] != Kind::alone)
            expected = formula<ScatterGather>(layout, ranks, raw.rank(), signs);
          CAPTURE(step);
          CHECK(sent() - before == expected.reduced + expected.spread);
        }
      });
  }
}

TEST_CASE("with the variance always up to date it is Adam without bias correction, to the bit") {
  const Layout layout = layers();
  Signs all_off = briefly<Signs>();
  all_off.weight_decay = 0.1F;
  all_off.variance_updates = all_off.variance_freeze_step = 1000000;
  const Adam<> adam{.learning_rate = all_off.learning_rate,
                    .beta2 = all_off.beta2,
                    .weight_decay = all_off.weight_decay,
                    .bias_correction = false};
  for (const float clip : {unbounded, 3.0F}) {
    const History ours = run(all_off, layout, 3, 20, 5, {.clip_norm = clip}, Unchanged{});
    const History theirs = run(adam, layout, 3, 20, 5, {.clip_norm = clip}, Unchanged{});
    for (std::size_t k = 0; k < ours.size(); ++k)
      for (std::size_t rank = 0; rank < 3; ++rank) {
        CHECK(ours[k][rank].parameters == theirs[k][rank].parameters);
        CHECK(ours[k][rank].state.parts.at("momentum") == theirs[k][rank].state.parts.at("momentum"));
        CHECK(sent_in(ours[k][rank]) == sent_in(theirs[k][rank]));
      }
  }
}

TEST_CASE("meeting in every step without compression is momentum over a variance that stands still") {
  const Layout layout = layers();
  Exactly recipe = briefly<Exactly>();
  recipe.weight_decay = 0.1F;
  recipe.most_local_steps = 1;
  const History ours = run(recipe, layout, 3, last_step, 1, {}, Unchanged{});
  const Snapshot& frozen = ours[recipe.variance_freeze_step - 1][0];
  const auto of = [](float value) { return static_cast<double>(value); };
  std::vector<std::vector<Floats>> gradients(last_step + 1);  // [step][rank]
  for (std::uint64_t step = 1; step <= last_step; ++step)
    for (int rank = 0; rank < 3; ++rank) gradients[step].push_back(gradient(layout, rank, step, 1));
  for (const Segment& segment : layout.segments())
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
      const double d = frozen.state.parts.at("variance")[at(k)];
      double x = of(frozen.parameters[at(k)]), m = frozen.state.parts.at("momentum")[at(k)];
      for (std::uint64_t step = recipe.variance_freeze_step + 1; step <= last_step; ++step) {
        double g = 0;
        for (const Floats& one : gradients[step]) g += of(one[at(k)]) / 3;
        m = of(recipe.beta1) * m + (1 - of(recipe.beta1)) * g;
        x -= of(recipe.learning_rate * segment.learning_rate_scale) *
             (std::clamp(m * d, -10.0, 10.0) + of(recipe.weight_decay * segment.weight_decay) * x);
      }
      CHECK(of(ours.back()[0].parameters[at(k)]) == doctest::Approx(x).epsilon(1e-5));
    }
}

namespace {

/// What each rank ends with after act(optimizer, parameters).
template <class R, class Act>
std::vector<Snapshot> last_of(const R& recipe, const Options& options, int ranks, Act act) {
  std::vector<Snapshot> last(at(ranks));
  const Layout layout = layers();
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    MeteredThreads transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout, masks_any(options)};
    Snapshot& mine = last[at(raw.rank())];
    mine.parameters = start(layout);
    act(optimizer, mine.parameters);
    optimizer.walk(mine.state);
  });
  return last;
}

template <class O>
void go(O& optimizer, Floats& x, std::uint64_t until) {
  while (optimizer.steps() < until) {
    const std::uint64_t step = optimizer.steps() + 1;
    optimizer.recipe.learning_rate = changing_rate(step);
    optimizer.step(x, gradient(optimizer.layout(), optimizer.rank(), step, 25));
  }
}

void check_equal(const std::vector<Snapshot>& one, const std::vector<Snapshot>& other) {
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    CHECK(one[rank].parameters == other[rank].parameters);
    CHECK(one[rank].state.parts == other[rank].state.parts);
  }
}

}  // namespace

TEST_CASE("it resumes to the bit, wherever it was") {
  const Signs recipe = with_everything<Signs>();
  const auto folder =
      std::filesystem::temp_directory_path() / ("terse-zero-one-adam-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::vector<Snapshot> whole =
      last_of(recipe, {}, 3, [](auto& optimizer, Floats& x) { go(optimizer, x, last_step); });
  // Between exact averages, at one, before and at the freeze, after a meeting, within periods; where nothing moves.
  for (const std::uint64_t saved : std::initializer_list<std::uint64_t>{5, 10, 11, 12, 15, 20, 22, 26, 34}) {
    CAPTURE(saved);
    last_of(recipe, {}, 3, [&](auto& optimizer, Floats& x) {
      go(optimizer, x, saved);
      checkpoint::save(folder / std::to_string(optimizer.rank()), optimizer, x);
    });
    const std::vector<Snapshot> resumed = last_of(recipe, {}, 3, [&](auto& optimizer, Floats& x) {
      // Nothing of its own may stay.
      go(optimizer, x, 3);
      checkpoint::load(folder / std::to_string(optimizer.rank()), optimizer, x);
      CHECK(optimizer.steps() == saved);
      go(optimizer, x, last_step);
    });
    check_equal(resumed, whole);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("at learning rate 0 parameters stay, and momenta go on") {
  Signs recipe = with_everything<Signs>();
  recipe.learning_rate = 0;
  const Layout layout = layers();
  const History ours = run(recipe, layout, 3, last_step, 25, {}, Unchanged{});
  for (std::size_t k = 0; k < ours.size(); ++k)
    for (const Snapshot& one : ours[k]) {
      CHECK(one.parameters == start(layout));
      CHECK(all_finite(one.state, one.parameters));
      if (k > 0) CHECK(one.state.parts.at("momentum") != ours[k - 1][0].state.parts.at("momentum"));
    }
}

TEST_CASE("a rate that falls does not blow the momentum up") {
  Signs recipe = briefly<Signs>();
  const Layout layout = layers();
  const History ours = run(recipe, layout, 2, 52, 1, {}, [](Signs& r, std::uint64_t step) {
    r.learning_rate = step <= 28 ? 1e-2F : 1e-5F;
  });
  const auto size = [&](std::uint64_t step) {
    return rms(layout, ours[step - 1][0].state.parts.at("momentum"), compressed_one);
  };
  for (std::uint64_t step = 32; step <= 52; step += 4) CHECK(size(step) < 2 * size(28));
}

TEST_CASE("what has no variance doesn't move, nor has it momentum, until an exact average brings some") {
  const Signs recipe = briefly<Signs>();
  const Layout layout = layers();
  const Floats begin = start(layout);
  const std::vector<Kind> kinds = schedule(recipe, last_step);
  // Gradients between two exact averages; too late; never.
  for (const std::uint64_t loud_from : std::initializer_list<std::uint64_t>{7, 14, 1000}) {
    CAPTURE(loud_from);
    const History ours = run(recipe, layout, 2, last_step, loud_from, {}, Unchanged{});
    bool wakes = false;
    for (std::uint64_t step = 1; step <= last_step; ++step) {
      CAPTURE(step);
      if (kinds[step] == Kind::exact && step >= loud_from) wakes = true;
      const bool together = step <= recipe.variance_freeze_step, frozen = step >= recipe.variance_freeze_step;
      each(layout, moving_one, [&](std::size_t i) {
        if (i % 17 != 3) return;
        const Snapshot& one = ours[step - 1][0];
        if (!wakes || !together) CHECK((one.parameters[i] != begin[i]) == wakes);
        if (!wakes && together) CHECK(one.state.parts.at("momentum")[i] == 0);
        // Masked, they have no error, either, and those before the freeze are forgotten.
        if (!wakes && frozen) CHECK(one.state.parts.at("variance")[i] == 0);
        if (!wakes && frozen) CHECK(spread_out(layout, one.state, "error")[i] == 0);
      });
      CHECK(all_finite(ours[step - 1][0].state, ours[step - 1][0].parameters));
    }
  }
}

TEST_CASE("a gradient that isn't finite is found before anything changes, in each kind of step") {
  const Signs recipe = with_everything<Signs>();
  const std::vector<Kind> kinds = schedule(recipe, last_step);
  const std::vector<Snapshot> whole =
      last_of(recipe, {}, 3, [](auto& optimizer, Floats& x) { go(optimizer, x, last_step); });
  for (const std::uint64_t when : std::initializer_list<std::uint64_t>{6, 22, 24}) {
    CAPTURE(when);
    const bool by_itself = when > recipe.variance_freeze_step;
    CHECK(kinds[when] == (when == 6 ? Kind::exact : when == 22 ? Kind::alone : Kind::meeting));
    const std::vector<Snapshot> ours = last_of(recipe, {}, 3, [&](auto& optimizer, Floats& x) {
      const int rank = optimizer.rank();
      go(optimizer, x, when - 1);
      if (!by_itself || rank == 1) {
        const Floats before = x;
        Seen seen, after;
        optimizer.walk(seen);
        optimizer.recipe.learning_rate = changing_rate(when);
        Floats g = gradient(optimizer.layout(), rank, when, 25);
        if (rank == 1) g[70] = not_a_number;
        int caught = 0;
        try {
          optimizer.step(x, g);
        } catch (const non_finite_error& failure) {
          caught = failure.culprit() == 1 && failure.rank() == rank &&
                   failure.step() == static_cast<std::int64_t>(when);
        }
        CHECK(caught == 1);
        optimizer.walk(after);
        CHECK(x == before);
        CHECK(after.parts == seen.parts);
      }
      go(optimizer, x, last_step);
    });
    check_equal(ours, whole);
  }
}

TEST_CASE("by policy it counts as 0, or all ranks skip the step") {
  const Signs recipe = with_everything<Signs>();
  const auto with = [&](NonFinite policy, std::uint64_t when, float poison) {
    int applied = 0;
    const std::vector<Snapshot> last =
        last_of(recipe, {.on_non_finite = policy}, 2, [&](auto& optimizer, Floats& x) {
          go(optimizer, x, when - 1);
          optimizer.recipe.learning_rate = changing_rate(when);
          Floats g = gradient(optimizer.layout(), optimizer.rank(), when, 25);
          if (optimizer.rank() == 1) g[70] = poison;
          const bool went = optimizer.step(x, g).applied;
          if (optimizer.rank() == 0) applied = went;
          go(optimizer, x, last_step);
        });
    for (const Snapshot& one : last) CHECK(all_finite(one.state, one.parameters));
    CHECK(applied == (policy == NonFinite::zero || std::isfinite(poison)));
    return last;
  };
  for (const std::uint64_t when : std::initializer_list<std::uint64_t>{8, 22, 24}) {
    CAPTURE(when);
    const std::vector<Snapshot> zero = with(NonFinite::zero, when, 0);
    for (const float poison : {not_a_number, -1e30F}) check_equal(with(NonFinite::zero, when, poison), zero);
    const float usual = gradient(layers(), 1, when, 25)[70];
    check_equal(with(NonFinite::skip, when, not_a_number), with(NonFinite::skip, when, usual));
  }
}

TEST_CASE("what can't work is refused, and ranks agree on the schedule") {
  const auto refuses = [](const Signs& recipe, const char* why) {
    CHECK_THROWS_WITH_AS(recipe.check(), doctest::Contains(why), usage_error);
  };
  CHECK_NOTHROW(Signs{}.check());
  refuses({.variance_freeze_step = 0}, "variance_freeze_step must be at least 1");
  refuses({.variance_updates = 0}, "variance_updates must be at least 1");
  refuses({.local_interval_steps = 0}, "local_interval_steps must be at least 1");
  refuses({.most_local_steps = 0}, "most_local_steps must be at least 1");
  refuses({.update_clip = 0}, "update_clip must be positive");
  refuses({.update_clip = not_a_number}, "update_clip must be positive");
  refuses({.beta1 = 1}, "beta1");
  refuses({.learning_rate = -1}, "learning_rate");
  CHECK_FALSE(Signs::recordable());

  for (const Signs& other : {Signs{.variance_freeze_step = 7}, Signs{.variance_updates = 7},
                             Signs{.local_interval_steps = 7}, Signs{.most_local_steps = 7}})
    CHECK_THROWS_AS(ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& raw) {
      MeteredThreads transport(raw.split(0, raw.rank()));
      const Optimizer optimizer{raw.rank() == 1 ? other : Signs{}, transport, two_kinds()};
    }),
                    mismatch_error);
}

TEST_CASE("steps allocate nothing, the freeze neither") {
  for (const Options& options : {Options{}, Options{.on_non_finite = NonFinite::skip, .clip_norm = 1}}) {
    std::atomic<int> counted{0};
    last_of(briefly<Signs>(), options, 3, [&](auto& optimizer, Floats& x) {
      const Floats g = gradient(optimizer.layout(), optimizer.rank(), 1, 1);
      barrier(optimizer.channel());
      barrier(optimizer.channel());
      const std::uint64_t before = allocations;
      for (std::uint64_t step = 1; step <= last_step; ++step) optimizer.step(x, g);
      const std::uint64_t after = allocations;
      // Nobody goes on to what allocates before everybody has counted.
      ++counted;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (counted < 3 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      CHECK(counted == 3);
      CHECK(after == before);
    });
  }
}

TEST_CASE("the same bits on a device") {
  for (const int ranks : {1, 3})
    both(ranks, [&]<Executor E>(auto& raw) {
      const Layout layout = few_layers();
      Signs recipe = with_everything<Signs>();
      recipe.variance_freeze_step = 5;
      recipe.local_interval_steps = 2;
      recipe.most_local_steps = 2;
      Trace trace;
      Metered transport(raw.split(0, raw.rank()));
      Optimizer optimizer{recipe, transport, layout, masks_any(), E{}};
      auto x = uploaded<E>(start(layout));
      for (std::uint64_t step = 1; step <= 12; ++step) {
        optimizer.recipe.learning_rate = step == 3 || step == 8 ? 0 : 1e-2F / static_cast<float>(step);
        Floats g = gradient(layout, transport.rank(), step, 4);
        // Alone, and where ranks meet.
        if ((step == 8 || step == 9) && transport.rank() == ranks - 1) {
          Floats bad = g;
          bad[1] = not_a_number;
          CHECK_THROWS_AS(optimizer.step(x.all(), uploaded<E>(bad).all()), non_finite_error);
        }
        optimizer.step(x.all(), uploaded<E>(g).all(), step % 3 == 0 ? 0.5F : 1.0F);
        Look look{trace.steps.emplace_back()};
        look("parameters", x.all(), 0);
        optimizer.walk(look);
      }
      trace.bytes =
          transport.traffic()[Phase::reduce].bytes_sent + transport.traffic()[Phase::spread].bytes_sent;
      return trace;
    });
}
