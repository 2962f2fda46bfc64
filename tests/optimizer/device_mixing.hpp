// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of mixing on TERSE_TEST_DEVICE share.

#include "optimizer/device_support.hpp"

namespace {

/// Compressed and not, around block and word edges, and long enough for several rows at a time; small, since emulated kernels are
/// slow.
Layout few_layers() {
  Layout layout;
  layout.add({"a", {65, 3}});
  layout.add({"b", {7}, 0.5F, 0, false});
  layout.add({"none", {0}});
  layout.add({"c", {130}, 1, 0.5F});
  layout.add({"d", {9, 59}});
  layout.add({"e", {67}, 1, 1, false});
  layout.add({"f", {531}, 1, 0, false});
  return layout;
}

/// program<E>(transport) -> Trace, on the host and on the device.
template <class Program>
void both(int ranks, Program program) {
  CAPTURE(ranks);
  std::vector<Trace> host(at(ranks)), device(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    host[at(transport.rank())] = program.template operator()<executor::host>(transport);
  });
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
    device[at(transport.rank())] = program.template operator()<Device>(staged);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(!host[at(rank)].steps.empty());
    CHECK(device[at(rank)] == host[at(rank)]);
  }
}

/// Messages leave before the gradient is there.
template <class R>
void compare_begun(const R& recipe, int ranks, const Options& options = {}) {
  both(ranks, [&]<Executor E>(auto& transport) {
    const Layout layout = few_layers();
    Trace trace;
    Optimizer optimizer{recipe, transport, layout, options, E{}};
    auto x = uploaded<E>(start(layout));
    for (std::uint64_t step = 1; step <= 5; ++step) {
      optimizer.begin(x.all());
      Look look{trace.steps.emplace_back()};
      look("mixture", x.all(), 0);
      const auto g = uploaded<E>(gradient(layout, transport.rank(), step, 1));
      optimizer.step(x.all(), g.all());
      look("parameters", x.all(), 0);
      optimizer.walk(look);
    }
    return trace;
  });
}

}  // namespace
