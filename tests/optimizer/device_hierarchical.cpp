// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_support.hpp"
#include "terse/exchange/hierarchical.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"

// Hierarchies on a device: the host's bits, and errors that a device finds.

TEST_CASE("hierarchies have the host's bits") {
  compare(Adam<Hierarchical<>>{.topology = {2}}, some_layers(), 4, 6, {.clip_norm = 0.5F});
  compare(OneBitAdam<Sign, Hierarchical<>>{.preconditioner = {.freeze = AtStep{4}}, .topology = {2}},
          some_layers(), 4, 9);
  compare(
      OneBitAdam<Sign, Hierarchical<Ring, Ring>>{.preconditioner = {.freeze = AtStep{4}}, .topology = {2}},
      some_layers(), 6, 9);
  compare(DeepGradientCompression<Hierarchical<ScatterGather, AllGather>>{.topology = {2}}, some_layers(), 4,
          6);
}

TEST_CASE("a gradient that isn't finite is known on all nodes, and moves nothing") {
  const Layout layout = some_layers();
  std::vector<std::string> errors(4);
  ThreadGroup(4, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{OneBitAdam<Hierarchical<>>{.preconditioner = {.freeze = AtStep{3}}, .topology = {2}},
                        staged,
                        layout,
                        {},
                        Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 7; ++step) {
      Floats g = gradient(layout, rank, step, 1);
      if (rank == 2 && (step == 2 || step == 6)) g[70] = std::numeric_limits<float>::quiet_NaN();
      const auto given = uploaded<Device>(g);
      Floats before(at(layout.size())), after(before.size());
      download(view<const float, Device::memory>(x.all()), view<float>(before));
      try {
        optimizer.step(x.all(), given.all());
      } catch (const non_finite_error& failure) {
        errors[at(rank)] += std::to_string(step) + ":" + std::to_string(failure.culprit()) + " ";
        download(view<const float, Device::memory>(x.all()), view<float>(after));
        CHECK(after == before);
      }
    }
  });
  for (const std::string& one : errors) CHECK(one == "2:2 6:2 ");
}
