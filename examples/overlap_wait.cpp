// SPDX-License-Identifier: Apache-2.0

// How much of its time does a rank wait for the others? Local SGD, Overlap-Local-SGD, and Streaming DiLoCo in 4 fragments that
// travel for 4 steps; 4 ranks, over links on which a dense average takes as long as 4 local steps, or as many as asked for. The
// network is modelled (terse::Delayed), and a local step's work is a sleep: the figures say what the methods hide, not what a
// machine does.
//
//   overlap_wait [rounds] [milliseconds of a step] [steps of an average]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/terse.hpp"
#include "terse/transport/delayed.hpp"
#include "wait_arguments.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int ranks = 4;
constexpr std::uint64_t period = 8;
constexpr terse::index_t elements = 100'000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A dense average is two phases of ScatterGather, in each of which a rank sends a quarter of the elements to each of
/// the three others. A hundredth of its time is latency.
terse::Link link_for(double average_seconds) {
  const double phase = average_seconds / 2, latency = 0.01 * phase;
  const double bytes = (ranks - 1) * (4.0 * elements / ranks + 32);
  return {std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * latency)), bytes / (phase - latency)};
}

/// Of the rank that waits longest.
struct Figures {
  double seconds = 0, waited = 0;
};

/// Steps through `rounds` whole periods after a first one, which only Local SGD waits in.
template <class Recipe>
Figures measure(const Recipe& recipe, const terse::Link& link, std::uint64_t rounds,
                std::chrono::milliseconds work) {
  std::vector<Figures> figures(ranks);
  terse::ThreadGroup(ranks, std::chrono::seconds(60)).run([&](terse::Threads& threads) {
    using Network = terse::Delayed<terse::Threads>;
    terse::Metered<Network> transport(Network(threads.split(0, threads.rank()), link));
    terse::Layout layout;
    for (const char* layer : {"a", "b", "c", "d"}) layout.add({layer, {elements / 4}});
    terse::Optimizer optimizer{recipe, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 1.0F), gradient(x.size(), 0.5F);
    const auto run = [&](std::uint64_t steps) {
      for (std::uint64_t step = 0; step < steps; ++step) {
        std::this_thread::sleep_for(work);
        optimizer.step(x, gradient);
      }
    };
    run(period);
    terse::barrier(threads);
    const double before = transport.traffic().seconds;
    const Clock::time_point begin = Clock::now();
    run(rounds * period);
    figures[static_cast<std::size_t>(threads.rank())] = {seconds_since(begin),
                                                         transport.traffic().seconds - before};
  });
  return *std::max_element(figures.begin(), figures.end(),
                           [](const Figures& a, const Figures& b) { return a.waited < b.waited; });
}

void compare(std::uint64_t rounds, std::chrono::milliseconds work, double average) {
  using terse::MomentumSgd;
  const double step = std::chrono::duration<double>(work).count();
  const terse::Link link = link_for(average * step);
  std::printf("%d ranks, %lld elements, %llu %s of %llu steps of %g ms\n", ranks,
              static_cast<long long>(elements), static_cast<unsigned long long>(rounds),
              rounds == 1 ? "round" : "rounds", static_cast<unsigned long long>(period), 1e3 * step);
  std::printf("modelled links: %.3g MB/s, %.3g ms latency; a dense average takes %g steps\n\n",
              link.bytes_per_second / 1e6, static_cast<double>(link.latency.count()) / 1e6, average);
  std::printf("%-16s %10s %10s %8s %18s\n", "", "seconds", "waited", "share", "steps per round");
  const auto print = [&](const char* method, const auto& recipe) {
    const Figures figures = measure(recipe, link, rounds, work);
    std::printf("%-16s %10.3f %10.3f %6.1f %% %18.2f\n", method, figures.seconds, figures.waited,
                100 * figures.waited / figures.seconds, figures.waited / static_cast<double>(rounds) / step);
  };
  const MomentumSgd<> inner{.learning_rate = 1e-3F};
  print("LocalSgd", terse::LocalSgd<MomentumSgd<>>{.inner = inner, .period = period});
  print("OverlapLocalSgd", terse::OverlapLocalSgd<MomentumSgd<>>{.inner = inner, .period = period});
  print("StreamingDiLoCo", terse::StreamingDiLoCo<MomentumSgd<>>{
                               .inner = inner, .period = period, .schedule = {.count = 4, .delay = 4}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto rounds = argument<std::int64_t>(argc, argv, 1, 5),
             work = argument<std::int64_t>(argc, argv, 2, 20);
  const auto average = argument<double>(argc, argv, 3, 4);
  if (argc > 4 || !rounds || !work || !average) {
    std::fprintf(stderr,
                 "usage: overlap_wait [rounds] [milliseconds of a step] [steps of an average]\n"
                 "whole numbers of at least 1, and a number above 0, up to a million\n");
    return 2;
  }
  try {
    compare(static_cast<std::uint64_t>(*rounds), std::chrono::milliseconds(*work), *average);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
