// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include "optimizer/support.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/local/local_sgd.hpp"

using namespace terse;        // NOLINT: a test of the library's names
using namespace terse::test;  // NOLINT

// Executor parallel: its team, and whole optimizers, which must leave the host's bits; verbs.cpp has its verbs.

namespace {

/// act(thread) on each of a team's threads: parts wait for as many others. Whether all came in time.
template <class Act>
bool run_at_once(Team& team, Act act) {
  std::atomic<int> here = 0, late = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  team.run(team.size(), [&](int, int thread) {
    ++here;
    while (here < team.size() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    late += here < team.size() ? 1 : 0;
    act(thread);
  });
  return late == 0;
}

}  // namespace

TEST_CASE("a team runs each part once, and all threads help") {
  for (const int threads : {1, 2, 5}) {
    Team team(threads);
    CHECK(team.size() == threads);
    for (const int parts : {0, 1, threads, 40}) {
      std::vector<int> times(at(parts));
      std::vector<std::thread::id> by(at(parts));
      for (int loop = 0; loop < 200; ++loop)
        team.run(parts, [&](int part, int thread) {
          times[at(part)] += thread >= 0 && thread < threads ? loop : -1000000;
          by[at(part)] = std::this_thread::get_id();
        });
      CHECK(times == std::vector<int>(at(parts), 199 * 100));
    }
    std::vector<std::thread::id> by(at(threads));
    CHECK(run_at_once(team, [&](int thread) { by[at(thread)] = std::this_thread::get_id(); }));
    CHECK(by[0] == std::this_thread::get_id());
    for (int k = 0; k < threads; ++k)
      for (int other = 0; other < k; ++other) CHECK(by[at(k)] != by[at(other)]);
  }
}

TEST_CASE("a team that is busy has the caller run all parts, and none waits for itself") {
  Team team(3);
  std::atomic<int> outer = 0, inner = 0;
  team.run(3, [&](int, int) {
    ++outer;
    const auto here = std::this_thread::get_id();
    team.run(3,
             [&](int, int thread) { inner += thread == 0 && std::this_thread::get_id() == here ? 1 : 1000; });
  });
  CHECK(outer == 3);
  CHECK(inner == 9);
}

TEST_CASE("an error is thrown when all parts have ended, the lowest part's, and the team goes on") {
  Team team(4);
  for (int time = 0; time < 20; ++time) {
    std::atomic<int> ended = 0;
    const auto fails = [&](int part, int) {
      if (part == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++ended;
      if (part == 2 || part == 5 || part == 7) throw std::runtime_error("part " + std::to_string(part));
    };
    CHECK_THROWS_WITH_AS(team.run(8, fails), "part 2", std::runtime_error);
    CHECK(ended == 8);
    team.run(8, [&](int, int) { ++ended; });
    CHECK(ended == 16);
  }
}

TEST_CASE("a team's threads round to nearest, whatever the thread did that made it") {
  std::fesetround(FE_UPWARD);
  Team team(2);
  std::fesetround(FE_TONEAREST);
  std::atomic<int> others = 0;
  CHECK(run_at_once(team, [&](int) { others += std::fegetround() == FE_TONEAREST ? 0 : 1; }));
  CHECK(others == 0);
}

TEST_CASE("a team of no threads is refused; by default it has a thread for each processor") {
  CHECK_THROWS_WITH_AS(executor::parallel(0), doctest::Contains("at least 1 thread, not 0"), usage_error);
  CHECK(executor::parallel().threads() == Team::available());
  CHECK(Team::available() >= 1);
}

namespace {

/// Shares ranges of any length.
struct ThreeThreads : executor::parallel {
  ThreeThreads() : parallel(3) { shared_from = 1; }
};

/// Segments around the blocks that threads share, and one of several.
Layout blocks_and_less() {
  Layout layout;
  layout.add({"a", {65, 63}});
  layout.add({"b", {7}, 0.5F, 0, false});
  layout.add({"c", {3 * 4096 + 1}});
  layout.add({"d", {64}});
  layout.add({"e", {8192}, 1, 0.5F, false});
  layout.add({"f", {130}});
  return layout;
}

/// What each rank has after each step: parameters, and everything that a checkpoint has.
template <Executor E, class R>
std::vector<std::vector<Seen>> trace(const R& recipe, int ranks, const Options& options) {
  const Layout layout = blocks_and_less();
  std::vector<std::vector<Seen>> all(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout, masks_any(options), E{}};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      optimizer.learning_rate(1e-2F / static_cast<float>(step));
      optimizer.step(x, gradient(layout, transport.rank(), step, 3), step % 3 == 0 ? 0.5F : 1.0F);
      Seen& seen = all[at(transport.rank())].emplace_back();
      seen("parameters", view<float>(x), 0);
      optimizer.walk(seen);
    }
  });
  return all;
}

template <class R>
void same(const R& recipe, int ranks, const Options& options = {}) {
  CAPTURE(type_name<R>());
  CAPTURE(ranks);
  const auto host = trace<executor::host>(recipe, ranks, options);
  const auto parallel = trace<ThreeThreads>(recipe, ranks, options);
  for (std::size_t rank = 0; rank < host.size(); ++rank)
    for (std::size_t step = 0; step < host[rank].size(); ++step)
      CHECK(parallel[rank][step].parts == host[rank][step].parts);
}

}  // namespace

TEST_CASE("optimizers leave the host's bits") {
  constexpr FrozenVariance soon{.freeze = AtStep{2}};
  for (const int ranks : {1, 3}) {
    same(Adam<>{.weight_decay = 0.01F}, ranks, {.clip_norm = 0.5F});
    same(OneBitAdam<>{.preconditioner = soon}, ranks);
    same(OneBitAdam<ScaledSign<RootMeanSquare, Whole>, FrozenVariance, Ring>{.preconditioner = soon}, ranks);
    same(OneBitAdam<ScaledSign<MeanAbs, PerBlock<8192>>>{.preconditioner = soon}, ranks);
    same(ErrorFeedbackSgd<Uniform<4, Stochastic, Symmetric, MaxAbs, PerBlock<128>>, HeavyBall, AllGather>{},
         ranks);
    same(DecentLaM<>{}, ranks);
    same(SlowMo<Adam<>>{.period = 2}, ranks);
  }
}

TEST_CASE("what isn't finite is found by whichever thread") {
  const Layout layout = blocks_and_less();
  for (const index_t where : {index_t{5}, layout.segments()[2].offset + 9000, layout.size() - 64}) {
    std::vector<std::string> errors(2);
    ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
      const int rank = transport.rank();
      Optimizer optimizer{OneBitAdam<>{}, transport, layout, {}, ThreeThreads{}};
      Floats x = start(layout), g = gradient(layout, rank, 1, 1);
      if (rank == 1) g[at(where)] = std::numeric_limits<float>::infinity();
      try {
        optimizer.step(x, g);
      } catch (const non_finite_error& failure) {
        errors[at(rank)] = failure.what();
      }
      CHECK(x == start(layout));
    });
    for (const std::string& text : errors)
      CHECK(text.find("the gradient of rank 1 is not finite") != std::string::npos);
  }
}
