// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "device_mixing.inc"
#include "optimizer/wide.hpp"

// What a device's own test leaves out, since nvcc would take minutes for it: everything else that runs there.

// Which recipes sweep four elements at a time.
static_assert(mixes_wide(DSgd<>{}) && mixes_wide(AwcDSgd<>{}) && mixes_wide(CtaDSgd<>{}) &&
              mixes_wide(DmSgd<>{}) && mixes_wide(DaDmSgd<>{}) && mixes_wide(AwcDmSgd<>{}) &&
              mixes_wide(DAdam<>{}) && mixes_wide(D2<>{}) && mixes_wide(D2DmSgd<>{}) &&
              mixes_wide(DecentLaM<>{}) && mixes_wide(GradientTracking<>{}) &&
              mixes_wide(MomentumTracking<>{}) && mixes_wide(QgDmSgd<>{}) &&
              mixes_wide(MomentumConsensus<>{}) && mixes_wide(StochasticGradientPush<>{}));
static_assert(mixes_wide(ChocoSgd<>{}) && mixes_wide(ChocoSgd<Uniform<8>>{}) && mixes_wide(DeepSqueeze<>{}) &&
              mixes_wide(DcdSgd<>{}) && mixes_wide(Beer<>{}) && mixes_wide(MoniquaSgd<>{}));
static_assert(is_wide<Differences<Dense::Code>, detail::Exact<detail::MixtureOf>>);

TEST_CASE("plain mixing with neighbours that change, and exact means in between") {
  for (const int ranks : {1, 2, 3, 4})
    compare(DSgd<Mixing<graph::OnePeerExponential>>{.weight_decay = 0.1F, .average_every = 3}, few_layers(),
            ranks, 6);
}

TEST_CASE("momentum of one's own, mixed, and quasi-global") {
  for (const int ranks : {2, 3}) {
    compare(DaDmSgd<>{.average_every = 4}, few_layers(), ranks, 5);
    compare(QgDmSgd<Mixing<graph::RandomMatching>>{}, few_layers(), ranks, 5);
    compare(MomentumConsensus<>{}, few_layers(), ranks, 5);
  }
}

TEST_CASE("methods that reach the optimum itself") {
  for (const int ranks : {2, 3}) {
    compare(D2DmSgd<>{}, few_layers(), ranks, 5);
    compare(GradientTracking<>{}, few_layers(), ranks, 5);
    compare(MomentumTracking<>{}, few_layers(), ranks, 5);
  }
}

TEST_CASE("gradients at the mixture, and averages that leave no message to begin") {
  for (const int ranks : {1, 2, 4}) compare_begun(CtaDSgd<>{.average_every = 2}, ranks);
  compare_begun(AwcDmSgd<>{.average_every = 2}, 2);
}

TEST_CASE("a gradient that isn't finite is an error for those that hear of it") {
  std::vector<int> culprits(3, -1);
  const Layout layout = few_layers();
  ThreadGroup(3, std::chrono::seconds(60)).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, transport.rank()), Device{});
    Optimizer optimizer{DecentLaM<>{}, staged, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    Floats g = gradient(layout, transport.rank(), 1, 1);
    if (transport.rank() == 1) g[3] = std::numeric_limits<float>::quiet_NaN();
    try {
      optimizer.step(x.all(), uploaded<Device>(g).all());
    } catch (const non_finite_error& failure) {
      culprits[at(transport.rank())] = failure.culprit();
      Floats after(at(layout.size()));
      download(view<const float, Device::memory>(x.all()), view<float>(after));
      CHECK(after == start(layout));
    }
  });
  CHECK(culprits == std::vector<int>{1, 1, 1});
}

TEST_CASE("16-bit parameters over fp32 masters") {
  both(2, [&]<Executor E>(auto& transport) {
    const Layout layout = few_layers();
    Trace trace;
    Optimizer optimizer{DecentLaM<>{}, transport, layout, {}, E{}, Numbers<bf16>{}};
    const auto narrow = [&](const Floats& values) {
      std::vector<bf16> small;
      for (const float value : values) small.push_back(narrowed<bf16>(value));
      buffer<bf16, typename E::memory> there(layout.size());
      upload(view<const bf16>(small), there.all());
      return there;
    };
    auto x = narrow(start(layout));
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto g = narrow(gradient(layout, transport.rank(), step, 1));
      optimizer.step(x.all(), g.all(), 0.5F);
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
      CHECK(trace.steps.back().contains("masters@0"));
    }
    return trace;
  });
}

TEST_CASE("machines of two ranks each") {
  compare(DmSgd<MachineMixing<graph::Ring>>{.topology = {.ranks_per_machine = 2}}, few_layers(), 4, 5);
}
