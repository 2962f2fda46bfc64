// SPDX-License-Identifier: Apache-2.0

// How much of its time does a fast rank wait for a slow one? Local SGD and SwarmSGD, 4 ranks, one of which takes
// three times as long for a step. A local step's work is a sleep: the figures say what the methods hide, not what a
// machine does. Asynchronous ranks make as many steps as they can until the slow one is done.
//
//   swarm_wait [steps of the slow rank] [milliseconds of a fast rank's step]

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"
#include "terse/terse.hpp"
#include "wait_arguments.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using terse::MomentumSgd;

constexpr int ranks = 4;
constexpr int slow = 0;
constexpr std::uint64_t period = 4;
constexpr terse::index_t elements = 100'000;

/// Of the fast rank that waits longest.
struct Figures {
  double seconds = 0, waited = 0;
  std::uint64_t steps = 0;
  double share() const { return waited / seconds; }
};

template <class Recipe>
Figures measure(const Recipe& recipe, bool together, std::uint64_t steps, std::chrono::milliseconds work) {
  std::vector<Figures> figures(ranks);
  std::atomic<bool> done = false;
  terse::ThreadGroup(ranks, std::chrono::seconds(60)).run([&](terse::Threads& threads) {
    terse::Metered<terse::Threads> transport(threads.split(0, threads.rank()));
    const terse::Layout layout = terse::Layout::flat(elements);
    terse::Optimizer optimizer{recipe, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 1.0F), gradient(x.size(), 0.5F);
    const bool is_slow = threads.rank() == slow;
    terse::barrier(threads);
    const double before = transport.traffic().seconds;
    const Clock::time_point begin = Clock::now();
    const auto goes_on = [&] { return together || is_slow ? optimizer.steps() < steps : !done.load(); };
    while (goes_on()) {
      std::this_thread::sleep_for(is_slow ? 3 * work : work);
      optimizer.step(x, gradient);
    }
    if (is_slow) done = true;
    figures[static_cast<std::size_t>(threads.rank())] = {
        std::chrono::duration<double>(Clock::now() - begin).count(), transport.traffic().seconds - before,
        optimizer.steps()};
  });
  return *std::max_element(figures.begin() + 1, figures.end(),
                           [](const Figures& a, const Figures& b) { return a.share() < b.share(); });
}

bool compare(std::uint64_t steps, std::chrono::milliseconds work) {
  std::printf(
      "%d ranks, %lld elements; rank %d makes %llu %s of %lld ms, those of the others take %lld ms\n\n",
      ranks, static_cast<long long>(elements), slow, static_cast<unsigned long long>(steps),
      steps == 1 ? "step" : "steps", static_cast<long long>(3 * work.count()),
      static_cast<long long>(work.count()));
  std::printf("%-24s %10s %10s %8s %8s\n", "", "seconds", "waited", "share", "steps");
  const auto print = [&](const char* method, const auto& recipe, bool together) {
    const Figures figures = measure(recipe, together, steps, work);
    std::printf("%-24s %10.3f %10.3f %6.1f %% %8llu\n", method, figures.seconds, figures.waited,
                100 * figures.share(), static_cast<unsigned long long>(figures.steps));
    return figures.share();
  };
  const MomentumSgd<> inner{.learning_rate = 1e-3F};
  print("LocalSgd", terse::LocalSgd<MomentumSgd<>>{.inner = inner, .period = period}, true);
  print("SwarmSgd, blocking", terse::SwarmSgd<MomentumSgd<>>{.inner = inner, .schedule = {.period = period}},
        true);
  print("SwarmSgd, non-blocking",
        terse::NonBlockingSwarmSgd<MomentumSgd<>>{.inner = inner, .schedule = {.period = period}}, true);
  return print("AsyncSwarmSgd", terse::AsyncSwarmSgd<MomentumSgd<>>{.inner = inner, .period = period},
               false) < 0.1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto steps = argument<std::int64_t>(argc, argv, 1, 24),
             work = argument<std::int64_t>(argc, argv, 2, 10);
  if (argc > 3 || !steps || !work) {
    std::fprintf(stderr,
                 "usage: swarm_wait [steps of the slow rank] [milliseconds of a fast rank's step]\n"
                 "whole numbers of at least 1, up to a million\n");
    return 2;
  }
  try {
    const bool fine = compare(static_cast<std::uint64_t>(*steps), std::chrono::milliseconds(*work));
    if (!fine)
      std::printf("\nfast ranks should spend less than a tenth of their time in asynchronous meetings\n");
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return EXIT_FAILURE;
  }
}
