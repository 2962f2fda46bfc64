// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer/device_support.hpp"

namespace {

/// Launches and copies of a compressed step, which must be as many on all ranks.
template <class R>
index_t launches_of(const R& recipe, const Layout& layout, int ranks) {
  std::vector<index_t> launches(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
    Optimizer optimizer{recipe, staged, layout, masks_any(), Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto g = uploaded<Device>(gradient(layout, transport.rank(), step, 4));
      const index_t before = Device::launches();
      optimizer.step(x.all(), g.all());
      launches[at(transport.rank())] = Device::launches() - before;
    }
    CHECK_FALSE(optimizer.full_precision());
  });
  CHECK(launches == std::vector<index_t>(at(ranks), launches.front()));
  return launches.front();
}

}  // namespace
