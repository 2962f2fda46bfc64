// SPDX-License-Identifier: Apache-2.0
// Full-precision steps whose gradient takes as long as its way over the wire: 8 equal layers, whose backward passes sleep, over
// links as slow as they (terse::Delayed), 4 ranks on threads. Without overlap a step takes both, with it hardly more than one of
// them. With --check it fails where overlap spares less than a quarter.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/delayed.hpp"
#include "terse/transport/thread.hpp"

namespace {

using namespace terse;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

constexpr int ranks = 4, layers = 8, steps = 3;
constexpr index_t layer = index_t{1} << 14;
constexpr double backward_seconds = 0.4;
constexpr double bytes = 2.0 * (ranks - 1) / ranks * sizeof(float) * layers * layer;

/// Seconds of a step, the least of some. A layer computes in `calls` parts, between which messages are moved along.
template <class R>
double measure(const R& recipe, bool overlaps, index_t slice_bytes, int calls = 1) {
  double least = 1e9;
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& threads) {
    Delayed<Threads> transport(threads.split(0, threads.rank()),
                               {.bytes_per_second = bytes / backward_seconds});
    Layout layout;
    for (int k = 0; k < layers; ++k) layout.add({std::to_string(k), {layer}});
    Optimizer optimizer{recipe, transport, layout, {.slice_bytes = slice_bytes}};
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size(), 0.1F);
    optimizer.step(x, g);
    for (int step = 0; step < steps; ++step) {
      barrier(threads);
      const auto begin = Clock::now();
      if (overlaps) optimizer.begin(x, g);
      for (index_t k = layers; k-- > 0;) {
        for (int call = 0; call < calls; ++call) {
          std::this_thread::sleep_for(Seconds(backward_seconds / layers / calls));
          if (overlaps) optimizer.progress();
        }
        if (overlaps) optimizer.ready(k);
      }
      optimizer.step(x, g);
      if (threads.rank() == 0) least = std::min(least, Seconds(Clock::now() - begin).count());
    }
  });
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checks = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  const index_t one_layer = layer * static_cast<index_t>(sizeof(float));
  const Adam<BySize<>> pairs{.topology = {.from = layers * layer}}, ring{.topology = {.from = 0}};
  const double alone = measure(pairs, false, 0), overlapped = measure(pairs, true, one_layer, 4);
  if (checks) {
    std::printf("a step takes %.3f s, overlapped %.3f s; backward and wire %.1f s each\n", alone, overlapped,
                backward_seconds);
    return overlapped < 0.75 * alone ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  struct Line {
    const char* what;
    double seconds;
  };
  const std::vector<Line> lines{
      {"all pairs, in one", alone},
      {"all pairs, a slice for each layer", measure(pairs, false, one_layer)},
      {"all pairs, a slice for each layer, overlapped", measure(pairs, true, one_layer)},
      {"the same, progress 4 times a layer", overlapped},
      {"ring, in one", measure(ring, false, 0)},
      {"ring, a slice for each layer", measure(ring, false, one_layer)},
      {"ring, a slice for each layer, overlapped", measure(ring, true, one_layer)},
      {"the same, progress 4 times a layer", measure(ring, true, one_layer, 4)},
  };
  std::printf("backward %.2f s, wire %.2f s\n\n| | step, s | step / the longer |\n|---|---:|---:|\n",
              backward_seconds, backward_seconds);
  for (const Line& line : lines)
    std::printf("| %s | %.3f | %.2f |\n", line.what, line.seconds, line.seconds / backward_seconds);
  return EXIT_SUCCESS;
}
