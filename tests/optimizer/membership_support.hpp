// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "optimizer/members.hpp"
#include "terse/optimizer/carry_over.hpp"
#include "transport/trapped.hpp"

// Runs in which a rank is lost.

namespace terse::test {

/// The models of the ranks that are left, by their first numbers, after a rank was lost in its batch number `at`.
struct Left {
  std::vector<std::vector<float>> models;
  std::uint64_t steps = 0;
  bool lost = false;
};

/// Trains on four ranks, of which rank 3 is lost in its batch `at` at the earliest in step 12; the others go on until `last`.
template <class Recipe>
Left train(const Recipe& recipe, long at, std::uint64_t last) {
  using Faulty = Trapped<Threads>;
  Left result;
  result.models.resize(3);
  std::mutex mutex;
  const Layout layout = layout_of();
  ThreadGroup(4, std::chrono::seconds(20)).run([&](Threads& transport) {
    const int me = transport.rank();
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 10.0F), g(x.size());
    Trap trap;
    Faulty four(transport.split(0, me), trap);
    Optimizer before{recipe, four, layout};
    try {
      while (before.steps() < last) {
        if (me == 3 && before.steps() == 12) trap.at = trap.batches + at;
        gradient(me, x, g);
        before.step(x, g);
      }
      barrier(four);  // ranks of late means may end without the lost one
      return;
    } catch (const peer_error&) {
      if (me == 3) throw std::runtime_error("lost");
    }
    auto [ranks, numbers] = transport.regroup();
    Optimizer now{before.recipe, ranks, before.layout(), before.options()};
    const CarriedOver carried = carry_over(before, now, x);
    const auto own = state_of(before);
    for (const auto& part : state_of(now))
      // What a rank has of its own stays, to the bit, unless another rank was ahead.
      if (!carried.sent && carried.zeroed.empty() && before.steps() == now.steps())
        CHECK_MESSAGE(own.at(part.first) == part.second, part.first);
    while (now.steps() < last) {
      gradient(numbers[static_cast<std::size_t>(now.rank())], x, g);
      now.step(x, g);
    }
    const std::lock_guard lock(mutex);
    result.models[static_cast<std::size_t>(numbers[static_cast<std::size_t>(now.rank())])] = x;
    result.steps = now.steps();
    result.lost = true;
  });
  return result;
}

/// Loses rank 3 in each of its batches in turn; those that are left must agree on the mean of their own targets, 1.
template <class Recipe>
void check_goes_on(const Recipe& recipe, float within, bool equal) {
  long losses = 0;
  for (long at = 0; at < 40; ++at) {
    const Left left = train(recipe, at, at < 12 ? 400 : 60);
    if (!left.lost) break;
    ++losses;
    if (at >= 12) continue;  // only that they go on
    CAPTURE(at);
    CHECK(left.steps == 400);
    for (const std::vector<float>& model : left.models) {
      REQUIRE(model.size() >= static_cast<std::size_t>(elements));
      const auto [least, most] = std::minmax_element(model.begin(), model.begin() + elements / 2);
      CHECK(*least == doctest::Approx(1).epsilon(within));
      CHECK(*most == doctest::Approx(1).epsilon(within));
      if (equal) CHECK(model == left.models[0]);
    }
  }
  CHECK(losses > 3);
}

inline const MomentumSgd<> inner{.learning_rate = 0.05F, .momentum_correction = {.momentum = 0.5F}};

}  // namespace terse::test
