// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer/device_support.hpp"

namespace {

struct StepCost {
  index_t launches = 0;            // and copies
  std::size_t argument_bytes = 0;  // the most of a kernel
  bool operator==(const StepCost&) const = default;
};

/// The cost of a recipe's third step, which must be equal on all ranks.
template <class R>
StepCost cost_of(const R& recipe, const Layout& layout, int ranks, bool full_precision = false) {
  std::vector<StepCost> costs(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
    Optimizer optimizer{recipe, staged, layout, masks_any(), Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto g = uploaded<Device>(gradient(layout, transport.rank(), step, 4));
      const index_t before = Device::launches();
      Device::most_argument_bytes() = 0;
      optimizer.step(x.all(), g.all());
      costs[at(transport.rank())] = {Device::launches() - before, Device::most_argument_bytes()};
    }
    CHECK(optimizer.full_precision() == full_precision);
  });
  CHECK(costs == std::vector<StepCost>(at(ranks), costs.front()));
  return costs.front();
}

/// Launches and copies of a compressed step.
template <class R>
index_t launches_of(const R& recipe, const Layout& layout, int ranks) {
  return cost_of(recipe, layout, ranks).launches;
}

}  // namespace
