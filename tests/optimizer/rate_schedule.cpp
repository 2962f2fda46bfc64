// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/rate_schedule.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "terse/core/error.hpp"

namespace {

template <class Schedule>
std::vector<double> rates(const Schedule& schedule, std::uint64_t last) {
  std::vector<double> all;
  for (std::uint64_t step = 1; step <= last; ++step) all.push_back(static_cast<double>(schedule(step)));
  return all;
}

void check_rates(const std::vector<double>& found, const std::vector<double>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    CAPTURE(k);
    CHECK(found[k] == doctest::Approx(wanted[k]).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("a cosine schedule rises, falls by half a cosine and stays") {
  // 2 steps up, then t = 0, 1/4, 1/2, 3/4, worked out by hand: cos(pi / 4) = 0.70710678.
  check_rates(rates(terse::CosineSchedule{.peak = 8, .steps = 6, .warmup = 2, .last = 4}, 8),
              {4, 8, 8, 4 + 4 * 0.85355339, 6, 4 + 4 * 0.14644661, 4, 4});
}

TEST_CASE("a linear schedule falls in a straight line") {
  check_rates(rates(terse::LinearSchedule{.peak = 8, .steps = 4}, 6), {8, 6, 4, 2, 0, 0});
  check_rates(rates(terse::LinearSchedule{.peak = 1, .steps = 3, .warmup = 3}, 4), {1.0 / 3, 2.0 / 3, 1, 0});
}

TEST_CASE("a schedule of warm-up, stable rate and decay") {
  check_rates(rates(terse::WarmupStableDecay{.peak = 4, .steps = 8, .warmup = 2, .decay = 4, .last = 2}, 9),
              {2, 4, 4, 4, 4, 3.5, 3, 2.5, 2});
  check_rates(rates(terse::WarmupStableDecay{.peak = 4, .steps = 2}, 3), {4, 4, 0});
}

TEST_CASE("schedules refuse what can't be") {
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS((terse::CosineSchedule{.peak = 0, .steps = 1}(1)),
                       "terse: a schedule's peak must be positive and finite, not 0.000000",
                       terse::usage_error);
  CHECK_THROWS_AS((terse::LinearSchedule{.peak = infinite, .steps = 1}(1)), terse::usage_error);
  CHECK_THROWS_AS((terse::LinearSchedule{.peak = 1, .steps = 1, .last = 2}(1)), terse::usage_error);
  CHECK_THROWS_AS((terse::CosineSchedule{.peak = 1}(1)), terse::usage_error);
  CHECK_THROWS_AS((terse::CosineSchedule{.peak = 1, .steps = 4, .warmup = 5}(1)), terse::usage_error);
  CHECK_THROWS_AS((terse::WarmupStableDecay{.peak = 1, .steps = 4, .warmup = 2, .decay = 3}(1)),
                  terse::usage_error);
  CHECK_THROWS_AS((terse::WarmupStableDecay{.peak = 1, .steps = 4, .decay = 5}(1)), terse::usage_error);
}
