// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "optimizer/device_mixing.hpp"
#include "optimizer/local_support.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

// SwarmSGD by a schedule on an executor of the grid kind, its ranks as threads: parameters, states and bytes must be
// the host's, bit for bit.

namespace {

using graph::Spacing;

/// `looks` into the state in each step, which completes meetings under way, or only in the end.
template <class R>
void compare_swarm(const R& recipe, int ranks, bool looks = true) {
  CAPTURE(type_name<R>());
  both(ranks, [&]<Executor E>(auto& raw) {
    const Layout layout = few_layers();
    Trace trace;
    Metered transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout, {}, E{}};
    auto x = uploaded<E>(start(layout));
    for (std::uint64_t step = 1; step <= 9; ++step) {
      rate_of(optimizer.recipe) = step == 6 ? 0 : 1e-2F * static_cast<float>(step);
      const auto g = uploaded<E>(gradient(layout, transport.rank(), step, 4));
      optimizer.step(x.all(), g.all(), step % 3 == 0 ? 0.5F : 1.0F);
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
      if (looks || step == 9) optimizer.walk(look);
    }
    trace.bytes = transport.traffic().bytes_sent();
    CHECK((trace.bytes > 0) == (ranks > 1));
    return trace;
  });
}

}  // namespace

TEST_CASE("blocking meetings") {
  for (const int ranks : {1, 2, 3}) compare_swarm(SwarmSgd<MomentumSgd>{.schedule = {.period = 2}}, ranks);
}

TEST_CASE("non-blocking meetings, looked at in every step and not") {
  using R = NonBlockingSwarmSgd<MomentumSgd>;
  for (const bool looks : {true, false}) {
    compare_swarm(R{.schedule = {.period = 2}}, 2, looks);
    compare_swarm(R{.schedule = {.period = 2, .spacing = Spacing::geometric}}, 3, looks);
  }
}
