// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "terse/core/type_name.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/thread.hpp"

// Rates that jump, and how far they throw a method that has found its optimum.

namespace terse::test {

/// Rates between 1e-41 and 1, to be scaled.
struct JumpingRates {
  const char* name;
  double (*at)(int step);
};
inline constexpr int jump_steps = 800, settled = 280;

/// A cosine that ends at 1e-10.
inline double cosine(int step, int period) {
  const double part = static_cast<double>(step % period) / (period - 1);
  return std::max(1e-10, 0.5 * (1 + std::cos(std::acos(-1.0) * part)));
}
inline double valley(int step, double low) { return step < 300 || step >= 500 ? 1 : low; }
inline double ramp(int step, double growth) {
  return step < 300 ? 1 : std::min(1.0, 1e-41 * std::pow(growth, step - 300));
}
inline constexpr JumpingRates jumping[] = {
    {"warm restarts between meetings", [](int step) { return cosine(step, 400); }},
    {"warm restarts within a period", [](int step) { return cosine(step, 404); }},
    {"down to 1e-41 and back", [](int step) { return valley(step, 1e-41); }},
    {"down to 1e-4 and back", [](int step) { return valley(step, 1e-4); }},
    {"down to 1e-41 for one step", [](int step) { return step % 100 == 99 ? 1e-41 : 1; }},
    {"down to 1e-41 in three of ten steps", [](int step) { return step % 10 > 6 ? 1e-41 : 1; }},
    {"doubling from 1e-41", [](int step) { return ramp(step, 2); }},
    {"by a quarter a step from 1e-41", [](int step) { return ramp(step, 1.25); }},
};

/// The largest distance of any rank's element from the optimum, which differs between ranks by a tenth, once it was found; infinite if
/// the run ends with an error.
template <class R>
double farthest(const R& recipe, const JumpingRates& rates, double most) {
  double worst = 0;
  std::mutex mutex;
  try {
    ThreadGroup(4, std::chrono::seconds(60)).run([&](Threads& transport) {
      constexpr std::size_t n = 64;
      Optimizer optimizer{recipe, transport, Layout::flat(n)};
      std::vector<float> x(n), g(n);
      double mine = 0;
      for (int step = 0; step < jump_steps; ++step) {
        const int noise = (step * 7 + transport.rank() * 3) % 1009;
        for (std::size_t i = 0; i < n; ++i) {
          const auto place = static_cast<float>(i);
          g[i] = x[i] - 1 - 0.1F * std::sin(place + static_cast<float>(transport.rank())) +
                 0.05F * std::sin(static_cast<float>(noise) * 0.9F + place);
        }
        optimizer.learning_rate(static_cast<float>(most * rates.at(step)));
        optimizer.step(x, g);
        for (const float value : x)
          if (step >= settled) mine = std::max(mine, std::abs(static_cast<double>(value) - 1));
      }
      const std::lock_guard lock(mutex);
      worst = std::max(worst, mine);
    });
  } catch (const usage_error&) {
    throw;
  } catch (const error&) {
    worst = std::numeric_limits<double>::infinity();
  }
  return worst;
}

/// A linear warm-up, rates that rise by less than 1 % a step and fall, and a drop by ten.
inline float gently(std::uint64_t step) {
  const auto t = static_cast<float>(step);
  if (step <= 15) return 0.003F * t;
  return 0.045F * (1 + 0.05F * std::sin((t - 15) / 8)) / (step < 35 ? 1.0F : 10.0F);
}
/// The same from a rate of 0.
inline float gently_from_0(std::uint64_t step) { return gently(step - 1); }

/// No rank gets farther than 0.6, whatever the rates do.
template <class R>
void check_jumps(const R& recipe, double most = 0.1) {
  CAPTURE(type_name<R>());
  for (const JumpingRates& rates : jumping) {
    CAPTURE(std::string(rates.name));
    CHECK(farthest(recipe, rates, most) < 0.6);
  }
}

/// How far it gets in the first case in which that is too far.
template <class R>
double thrown(const R& recipe) {
  double worst = 0;
  for (const JumpingRates& rates : jumping)
    if (worst <= 0.6) worst = std::max(worst, farthest(recipe, rates, 0.1));
  return worst;
}

}  // namespace terse::test
