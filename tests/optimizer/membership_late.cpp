// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

#include "optimizer/membership_support.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/distro.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

// Ranks that go on without one that is lost while means or meetings are in flight.

namespace {

using namespace terse;
using namespace terse::test;

using Sgd = MomentumSgd<>;
const Sgd plain{.learning_rate = 0.0625F, .momentum_correction = {.momentum = 0}};

/// The values of a part of a state.
template <class Optimizer>
std::vector<float> part_of(Optimizer& optimizer, const char* name) {
  const std::vector<std::byte> bytes = state_of(optimizer).at(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The moment of a loss: none; after step 9, with the messages of step 8 in flight, or saved and so landed, but not due; or when
/// rank 0 has sent its messages in step 8, and ranks 1 and 2 can't.
enum class Loss { none, in_flight, landed, at_send };

/// Trains four ranks, of which rank 3 may be lost, with equal gradients or with gradients that are `apart`. Calls end(optimizer, x)
/// on the others after step `last`, and returns how many have done so.
template <class Recipe, class End>
int train_four(const Recipe& recipe, Loss loss, std::uint64_t last, End end, float apart = 0) {
  const Layout layout = layout_of();
  std::atomic<int> done = 0, arrived = 0;
  Event passed;
  ThreadGroup(4, std::chrono::seconds(20)).run([&](Threads& transport) {
    const int me = transport.rank();
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 7);
      g[i] = static_cast<float>(i % 5) - 1 + apart * static_cast<float>(me);
    }
    const auto go_to = [&](auto& optimizer, std::uint64_t step) {
      while (optimizer.steps() < step) optimizer.step(x, g);
    };
    Trap trap;
    Trapped<Threads> four(transport.split(0, me), trap);
    Optimizer before{recipe, four, layout};
    if (loss == Loss::none) {
      go_to(before, last);
      if (me != 3) end(before, x), ++done;
      return;
    }
    go_to(before, loss == Loss::at_send ? 7 : loss == Loss::in_flight && me == 3 ? 8 : 9);
    const auto saved = loss == Loss::in_flight ? decltype(state_of(before)){} : state_of(before);
    if (loss == Loss::at_send && me == 0) go_to(before, 8);
    if (loss == Loss::at_send && (me == 1 || me == 2)) {
      trap.at = trap.batches;
      CHECK_THROWS_AS(before.step(x, g), peer_error);
    }
    if (me == 3) {
      CHECK(passed.wait());
      throw std::runtime_error("lost");
    }
    if (++arrived == 3) passed.set();
    CHECK_THROWS_AS(barrier(transport), peer_error);
    Threads ranks = transport.regroup().transport;
    Optimizer now{before.recipe, ranks, layout, before.options()};
    const std::vector<float> own = x;
    carry_over(before, now, x);
    CHECK(x == own);
    if (loss == Loss::landed) CHECK(state_of(now) == saved);
    go_to(now, last);
    end(now, x);
    ++done;
  });
  return done;
}

/// The result of train_four on rank 0, by read(optimizer, x).
template <class Recipe, class Read>
std::vector<float> result_of(const Recipe& recipe, Loss loss, std::uint64_t last, Read read) {
  std::mutex mutex;
  std::vector<float> result;
  CHECK(train_four(recipe, loss, last, [&](auto& optimizer, const std::vector<float>& x) {
          const std::vector<float> mine = read(optimizer, x);
          const std::lock_guard lock(mutex);
          if (result.empty()) result = mine;
          CHECK(result == mine);
        }) == 3);
  return result;
}

const auto parameters = [](auto&, const std::vector<float>& x) { return x; };

/// Checks that a run with this loss ends where one without a loss does, which all messages equal.
template <class Recipe, class Read>
void check_nothing_lost(const Recipe& recipe, std::initializer_list<Loss> losses, Read read) {
  for (const Loss loss : losses) {
    CAPTURE(static_cast<int>(loss));
    for (const std::uint64_t last : {10U, 12U, 23U}) {
      CAPTURE(last);
      const std::vector<float> with = result_of(recipe, loss, last, read),
                               without = result_of(recipe, Loss::none, last, read);
      REQUIRE(with.size() == without.size());
      for (std::size_t i = 0; i < with.size(); ++i) CHECK(std::abs(with[i] - without[i]) < 1e-5F);
    }
  }
}

TEST_CASE("Streaming DiLoCo: a dropped move is part of the next one") {
  using Recipe = StreamingDiLoCo<Sgd>;
  const Recipe recipe{.inner = plain,
                      .period = 4,
                      .outer = {.rate = 1, .momentum = 0, .local_share = 0.5F},
                      .schedule = {.count = 2, .delay = 2}};
  check_nothing_lost(recipe, {Loss::landed}, parameters);
  Recipe keeps = recipe;
  keeps.outer.local_share = 1;
  check_nothing_lost(keeps, {Loss::in_flight, Loss::landed, Loss::at_send}, parameters);

  // The first fragment is not merged in step 10, where its mean was due, and its next move, of step 12, has all steps.
  const std::size_t half = elements / 2;
  const auto at_eleven = result_of(recipe, Loss::in_flight, 11, parameters);
  const auto anchor =
      result_of(recipe, Loss::in_flight, 14, [](auto& now, auto&) { return part_of(now, "anchor"); });
  const auto at_nine = result_of(recipe, Loss::none, 9, parameters);
  for (std::size_t i = 0; i < half; ++i) {
    const float step = 0.0625F * (static_cast<float>(i % 5) - 1);
    CHECK(std::abs(at_eleven[i] - (at_nine[i] - 2 * step)) < 1e-5F);
    CHECK(std::abs(anchor[i] - (at_nine[i] - 3 * step)) < 1e-5F);
  }
}

TEST_CASE("CocktailSGD: a dropped trade is called off") {
  CocktailSgd<Sgd, TopK<>> recipe{.inner = plain, .period = 4, .schedule = {.count = 2, .delay = 2}};
  recipe.compressor.selection.ratio = 0.25;
  check_nothing_lost(recipe, {Loss::in_flight, Loss::landed, Loss::at_send}, parameters);
}

TEST_CASE("Overlap-Local-SGD: without a mean the rank's own model takes its place") {
  check_nothing_lost(OverlapLocalSgd<Sgd>{.inner = plain, .period = 4},
                     {Loss::in_flight, Loss::landed, Loss::at_send}, parameters);
}

TEST_CASE("CoCoD-SGD: without a mean the rank's own model takes its place") {
  check_nothing_lost(CocodSgd<Sgd>{.inner = plain, .period = 4},
                     {Loss::in_flight, Loss::landed, Loss::at_send}, parameters);
}

TEST_CASE("a late mean within local steps is dropped as well") {
  const StreamingDiLoCo<Sgd> within{.inner = plain,
                                    .period = 4,
                                    .outer = {.rate = 1, .momentum = 0, .local_share = 1},
                                    .schedule = {.count = 1, .delay = 2}};
  check_nothing_lost(LocalSgd<StreamingDiLoCo<Sgd>>{.inner = within, .period = 6}, {Loss::in_flight},
                     parameters);
  check_nothing_lost(SwarmSgd<StreamingDiLoCo<Sgd>>{.inner = within, .schedule = {.period = 6}},
                     {Loss::in_flight}, parameters);
}

TEST_CASE("non-blocking SwarmSGD: a dropped meeting adds nothing") {
  check_nothing_lost(NonBlockingSwarmSgd<Sgd>{.inner = plain, .schedule = {.period = 4}},
                     {Loss::in_flight, Loss::landed, Loss::at_send}, parameters);
}

TEST_CASE("the result of a meeting that was saved is not dropped") {
  const auto nothing = [](auto&, auto&) {};
  CHECK(train_four(NonBlockingSwarmSgd<Sgd>{.inner = plain, .schedule = {.period = 4}}, Loss::landed, 10,
                   nothing, 1) == 3);
}

TEST_CASE("late means and meetings go on, wherever a rank was lost") {
  check_goes_on(StreamingDiLoCo<Sgd>{.inner = inner,
                                     .period = 4,
                                     .outer = {.rate = 0.5F, .momentum = 0.5F},
                                     .schedule = {.count = 2, .delay = 3}},
                0.3F, false);
  check_goes_on(StreamingDiLoCo<Sgd, Uniform<8>, Residual>{.inner = inner,
                                                           .period = 4,
                                                           .outer = {.rate = 0.5F, .momentum = 0.5F},
                                                           .schedule = {.count = 2, .delay = 1}},
                0.3F, false);
  check_goes_on(OverlapLocalSgd<Sgd>{.inner = inner, .period = 4}, 0.3F, false);
  check_goes_on(CocodSgd<Sgd>{.inner = inner, .period = 4}, 0.3F, false);
  CocktailSgd<Sgd, TopK<>> cocktail{.inner = plain, .period = 2};
  cocktail.compressor.selection.ratio = 0.25;
  check_goes_on(cocktail, 0.3F, false);
  DisTrO<Dct<64, TopK<>>> distro{.learning_rate = 0.05F};
  distro.compressor.inner.selection.ratio = 0.1;
  check_goes_on(distro, 0.3F, false);
  check_goes_on(NonBlockingSwarmSgd<Sgd>{.inner = plain, .schedule = {.period = 2}}, 0.5F, false);
}

/// Carries optimizers of worlds of one rank, of which rank r has taken taken[r] steps, over to one of all three ranks. Calls
/// check(now, x), and returns how many ranks have done so.
template <class Recipe, class Check>
int join(const Recipe& recipe, std::array<std::uint64_t, 3> taken, Check check) {
  const Layout layout = layout_of();
  std::atomic<int> done = 0;
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const int me = transport.rank();
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
    Threads alone = transport.split(me, 0);
    Optimizer before{recipe, alone, layout};
    while (before.steps() < taken[static_cast<std::size_t>(me)]) {
      gradient(me, x, g);
      before.step(x, g);
    }
    // As after a step that has failed.
    for (float& each : x) each -= static_cast<float>(me);
    Optimizer now{recipe, transport, layout};
    carry_over(before, now, x);
    check(now, x);
    gradient(me, x, g);
    now.step(x, g);
    ++done;
  });
  return done;
}

TEST_CASE("ranks of late means start together, and with gradients averaged first go on together") {
  const auto alike = [](auto& now, const std::vector<float>& x) {
    CHECK(all_gather(now.channel(), x[0]) == std::vector<float>(3, x[0]));
  };
  StreamingDiLoCo<Sgd> recipe{.inner = inner, .period = 4};
  CHECK(join(recipe, {0, 0, 0}, alike) == 3);
  recipe.average_gradients_until = 9;
  CHECK(join(recipe, {5, 4, 5}, alike) == 3);
}

/// Checks in how many values the ranks' parts of a state begin.
auto has_values(std::vector<const char*> parts, std::size_t values) {
  return [=](auto& now, const std::vector<float>& x) {
    for (const char* part : parts) {
      CAPTURE(part);
      const std::vector<float> all = all_gather(now.channel(), part_of(now, part).at(0));
      CHECK(std::set<float>(all.begin(), all.end()).size() == values);
    }
    const std::vector<float> models = all_gather(now.channel(), x.at(0));
    CHECK(std::set<float>(models.begin(), models.end()).size() == 3);
  };
}

TEST_CASE("after a loss ranks share what their method keeps equal, and nothing else") {
  CHECK(join(StreamingDiLoCo<Sgd>{.inner = inner, .period = 4, .schedule = {.count = 1}}, {9, 8, 9},
             has_values({"anchor", "outer_velocity"}, 1)) == 3);
  CocktailSgd<Sgd, TopK<>> cocktail{.inner = inner, .period = 2};
  cocktail.compressor.selection.ratio = 0.5;
  CHECK(join(cocktail, {9, 8, 9}, has_values({"anchor"}, 1)) == 3);
  CHECK(join(OverlapLocalSgd<Sgd>{.inner = inner, .period = 4}, {8, 8, 8},
             has_values({"mean", "merged"}, 3)) == 3);
  CHECK(join(CocodSgd<Sgd>{.inner = inner, .period = 4}, {9, 9, 9}, has_values({"mean", "merged"}, 3)) == 3);
}

TEST_CASE("a rank that was lost before its first step leaves no other without an anchor") {
  const auto starts_from = [](const char* name) {
    return [name](auto& now, const std::vector<float>&) {
      const std::vector<float> anchor = part_of(now, name);
      CHECK(now.steps() == 1);
      CHECK(*std::min_element(anchor.begin(), anchor.begin() + elements / 2) == 10);
    };
  };
  CHECK(join(OverlapLocalSgd<Sgd>{.inner = inner, .period = 4}, {0, 1, 0}, starts_from("mean")) == 3);
  CHECK(join(CocodSgd<Sgd>{.inner = inner, .period = 4}, {0, 1, 0}, starts_from("merged")) == 3);
  CHECK(join(NoLoCo<Sgd>{.inner = inner, .period = 4}, {0, 1, 0}, starts_from("anchor")) == 3);
}

}  // namespace
