// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "terse/core/view.hpp"

// Memory limits passes over arrays, and its speed differs between machines, and on one machine from hour to hour. So they
// are measured in yardsticks: one yardstick is the time of x[i] *= a over as many floats.

namespace terse::bench {

/// Returns `count` floats or more, which all benchmarks share, and may read and write.
inline float* playground(index_t count) {
  static buffer<float> floats;
  if (floats.size() < count) {
    floats = {};
    floats = buffer<float>(count);
  }
  return floats.data();
}

/// Returns the seconds of one call.
template <class Work>
double seconds(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Returns the number of passes to time together: several short ones, so that the clock's own time doesn't count.
inline index_t passes_at_once(index_t n) { return std::max<index_t>(1, (index_t{128} << 10) / n); }

/// Computes x *= a with explicit vectors: 4 bytes read and 4 written for each element.
inline void scale(float* x, index_t n, float a) {
  using Vector [[gnu::vector_size(32), gnu::may_alias]] = float;
  auto* vectors = reinterpret_cast<Vector*>(x);
  for (index_t i = 0; i < n / 8; ++i) vectors[i] *= a;
}

/// Returns the seconds that a yardstick of n floats takes now.
inline double yardstick(index_t n) {
  float* x = playground(n);
  float a = -1;
  benchmark::DoNotOptimize(a);
  const index_t passes = passes_at_once(n);
  const double took = seconds([&] {
    for (index_t p = 0; p < passes; ++p) {
      scale(x, n, a);
      benchmark::ClobberMemory();
    }
  });
  return took / static_cast<double>(passes);
}

/// Runs `work`, a pass over n floats, as often as Google Benchmark asks, each time after `prepare`, which isn't timed.
/// Reports its best time relative to yardsticks that alternate with it, so that a slow moment of the machine affects
/// both.
template <class Work, class... Prepare>
void measure(benchmark::State& state, index_t n, Work&& work, Prepare&&... prepare) {
  const index_t passes = sizeof...(prepare) > 0 ? 1 : passes_at_once(n);
  double unit = std::numeric_limits<double>::infinity(), best = unit;
  while (state.KeepRunningBatch(passes)) {
    state.PauseTiming();
    unit = std::min(unit, yardstick(n));
    (prepare(), ...);
    state.ResumeTiming();
    const double took = seconds([&] {
      for (index_t p = 0; p < passes; ++p) {
        work();
        benchmark::ClobberMemory();
      }
    });
    best = std::min(best, took / static_cast<double>(passes));
  }
  for (int round = 0; round < 3; ++round) unit = std::min(unit, yardstick(n));
  state.counters["yardsticks"] = best / unit;
  state.counters["elements_per_second"] = static_cast<double>(n) / best;
  state.counters["best_seconds"] = best;
  state.counters["yardstick_seconds"] = unit;
}

}  // namespace terse::bench
