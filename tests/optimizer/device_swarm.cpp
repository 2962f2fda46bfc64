// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "optimizer/device_mixing.hpp"
#include "optimizer/local_support.hpp"
#include "optimizer/wide.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/device.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

// SwarmSGD by a schedule on an executor of the grid kind, its ranks as threads: parameters, states and bytes must be
// the host's, bit for bit.

// All of its sweeps go four elements at a time.
static_assert(says_wide<detail::ReadParameters<float>> && takes_wide<detail::KeepGain> &&
              takes_wide<detail::KeepDifference> && takes_wide<detail::AverageWith<float>> &&
              is_wide_alone<detail::TakeUp<float>> &&
              is_wide<Differences<Dense::Code>, detail::Gated<detail::MixExact<detail::MoveBy<float>>>> &&
              is_wide<Differences<Dense::Code>, detail::Gated<detail::MixExact<detail::KeepDifference>>>);

namespace {

using graph::Spacing;
using OnLattice = SwarmSgd<MomentumSgd<>, Lattice<8>>;
using LateOnLattice = NonBlockingSwarmSgd<MomentumSgd<>, Lattice<8>>;

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
      optimizer.learning_rate(step == 6 ? 0 : 1e-2F * static_cast<float>(step));
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
  for (const int ranks : {1, 2, 3}) compare_swarm(SwarmSgd<MomentumSgd<>>{.schedule = {.period = 2}}, ranks);
}

TEST_CASE("non-blocking meetings, looked at in every step and not") {
  using R = NonBlockingSwarmSgd<MomentumSgd<>>;
  for (const bool looks : {true, false}) {
    compare_swarm(R{.schedule = {.period = 2}}, 2, looks);
    compare_swarm(R{.schedule = {.period = 2, .spacing = Spacing::geometric}}, 3, looks);
  }
}

TEST_CASE("meetings by a lattice") {
  for (const int ranks : {1, 2, 3, 4}) {
    compare_swarm(OnLattice{.schedule = {.period = 2}, .compressor = {0.01F}}, ranks);
    compare_swarm(LateOnLattice{.schedule = {.period = 2}, .compressor = {0.01F}}, ranks, ranks % 2 == 0);
  }
}

TEST_CASE("parameters beyond the lattice's bound: the host's error, and they stay as they are") {
  const auto check = [](const auto& recipe) {
    CAPTURE(type_name<decltype(recipe)>());
    both(2, [&]<Executor E>(auto& transport) {
      const Layout layout = few_layers();
      Optimizer optimizer{recipe, transport, layout, {}, E{}};
      Floats from = start(layout);
      if (transport.rank() == 1) from[at(layout.segments()[3].offset + 129)] += 0.13F;
      auto x = uploaded<E>(from);
      const auto none = uploaded<E>(Floats(from.size()));
      Trace trace;
      try {
        for (int step = 0; step < 4; ++step) optimizer.step(x.all(), none.all());
      } catch (const wire_error& failure) {
        trace.hash = failure.what();
      }
      CHECK(trace.hash.find("step 2: the packet from rank") != std::string::npos);
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
      const auto bytes = std::as_bytes(std::span(from));
      CHECK(trace.steps[0].at("parameters@0") == std::vector(bytes.begin(), bytes.end()));
      return trace;
    });
  };
  check(OnLattice{.schedule = {.period = 2}, .compressor = {0.001F}});
  check(LateOnLattice{.schedule = {.period = 2}, .compressor = {0.001F}});
}
