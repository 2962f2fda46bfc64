// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "local_support.hpp"

// Local methods, all of whose ranks take their steps at once, against oracles.

namespace terse::test {

inline constexpr std::uint64_t steps = 40;
using RateOf = float (*)(std::uint64_t step);

constexpr double in_double(float value) { return static_cast<double>(value); }

/// Changes from step to step, and is never 0.
inline float up_and_down(std::uint64_t step) {
  return 0.02F * (1 + 0.5F * std::sin(static_cast<float>(step)));
}
inline float steady(std::uint64_t) { return 0.02F; }

struct Training {
  RateOf rate = warm_and_cool;
  Layout layout = odd_sizes();
  std::uint64_t count = steps;
  bool looks = true;   ///< into the state, in each step
  int first_rank = 0;  ///< whose quadratics are rank 0's
  float scale = 1;     ///< of gradients
};

template <class R>
History train(const R& recipe, int ranks, const Training& training = {}) {
  History history(training.count, std::vector<Snapshot>(at(ranks)));
  on_ranks(ranks, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, training.layout};
    const std::size_t rank = at(transport.rank());
    Floats x = start(training.layout);
    for (std::uint64_t step = 1; step <= training.count; ++step) {
      optimizer.learning_rate(training.rate(step));
      const std::uint64_t reduced = transport.traffic()[Phase::reduce].bytes_sent;
      const std::uint64_t spread = transport.traffic()[Phase::spread].bytes_sent;
      const Floats g = Quadratics::gradient<float>(rank + at(training.first_rank), x);
      optimizer.step(x, g, training.scale);
      Snapshot& snapshot = history[step - 1][rank];
      if (training.looks) optimizer.walk(snapshot.state);
      snapshot.state.parts["gradient"].assign(g.begin(), g.end());
      snapshot.parameters = x;
      snapshot.reduced = transport.traffic()[Phase::reduce].bytes_sent - reduced;
      snapshot.spread = transport.traffic()[Phase::spread].bytes_sent - spread;
    }
  });
  return history;
}

inline bool all_alike(const std::vector<Snapshot>& ranks) {
  for (const Snapshot& one : ranks)
    if (one.parameters != ranks[0].parameters) return false;
  return true;
}
inline bool all_alike(const std::vector<Snapshot>& ranks, const std::string& part) {
  for (const Snapshot& one : ranks)
    if (one.state.parts.at(part) != ranks[0].state.parts.at(part)) return false;
  return true;
}

/// The largest distance between the parameters of two runs, of all steps and ranks.
inline double gap(const History& a, const History& b, const Layout& layout = odd_sizes()) {
  double worst = 0;
  for (std::size_t step = 0; step < a.size(); ++step)
    for (std::size_t rank = 0; rank < a[step].size(); ++rank)
      worst = std::max(
          worst, relative_error(layout, a[step][rank].parameters, b[step][rank].parameters, any_one, 1));
  return worst;
}

/// How far fp32 may be from double, where both work on numbers around 1: see mixing.cpp. Adam's direction is a
/// quotient of what may be small, and then has the relative error of a small gradient.
inline constexpr double tolerance = 1e-5;

}  // namespace terse::test
