// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "device.inc"
#include "terse/optimizer/lars.hpp"

// What a device's own test leaves out, since nvcc would take minutes for it: everything else that runs there.

TEST_CASE("full-precision recipes") {
  for (const int ranks : {1, 3}) {
    compare(Adam<>{.weight_decay = 0.01F}, some_layers(), ranks, 6);
    compare(MomentumSgd<>{}, some_layers(), ranks, 6);
    compare(Lars<>{.weight_decay = 0.1F}, some_layers(), ranks, 6);
  }
  compare(Adam<>{}, some_layers(), 2, 6, {.on_non_finite = NonFinite::skip, .clip_norm = 0.5F});
}

TEST_CASE("1-bit Adam over every topology") {
  for (const int ranks : {1, 4}) {
    compare(OneBitAdam<Sign, FrozenVariance, ScatterGather>{.preconditioner = early}, some_layers(), ranks,
            9);
    compare(OneBitAdam<Sign, FrozenVariance, Ring>{.preconditioner = early}, some_layers(), ranks, 9);
    compare(OneBitAdam<Sign, FrozenVariance, AllGather>{.preconditioner = early}, some_layers(), ranks, 9);
  }
  compare(OneBitAdam<Sign, FrozenVariance, Alone>{.preconditioner = early}, some_layers(), 2, 9);
}

TEST_CASE("1-bit Adam with scales for blocks and for the whole, and with a rule for the freeze") {
  compare(OneBitAdam<ScaledSign<RootMeanSquare, PerBlock<512>>>{.preconditioner = early}, some_layers(), 3,
          9);
  compare(OneBitAdam<ScaledSign<RootMeanSquare, Whole>>{.preconditioner = early}, some_layers(), 3, 9);
  compare(OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{.threshold = 0.5F, .horizon = 3}}},
          some_layers(), 2, 9, {.clip_norm = 1});
}

TEST_CASE("averaged gradients; tests/laws/laws_device.cpp has the compressors") {
  compare(
      ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{.warmup_steps = 2,
                                                                 .error_feedback = {.follows_rate = true}},
      some_layers(), 2, 6);
  compare(SignSgd<>{}, some_layers(), 3, 5);
  compare(Ef21Sgd<ScaledSign<MeanAbs>, HeavyBall>{}, some_layers(), 3, 6);
}

TEST_CASE("a state goes from a device through a file to a device") {
  const auto folder = std::filesystem::temp_directory_path() / ("terse_device_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Layout layout = some_layers();
  const OneBitAdam<> recipe{.preconditioner = early};
  std::vector<std::string> once(2), resumed(2), on_host(2);
  const auto file_of = [&](int rank) { return folder / std::to_string(rank); };
  const auto finish = [&](auto& optimizer, auto& x, int rank, auto upload_gradient) {
    for (std::uint64_t step = optimizer.steps() + 1; step <= 9; ++step) {
      const auto g = upload_gradient(gradient(layout, rank, step, 1));
      optimizer.step(x.all(), g.all());
    }
  };
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{recipe, staged, layout, {}, Device{}};
    auto x = uploaded<Device>(start(layout));
    for (std::uint64_t step = 1; step <= 6; ++step) {
      const auto g = uploaded<Device>(gradient(layout, rank, step, 1));
      optimizer.step(x.all(), g.all());
    }
    checkpoint::save(file_of(rank), optimizer, x.all());
    finish(optimizer, x, rank, uploaded<Device>);
    once[at(rank)] = checkpoint::parameters_hash(layout, view<const float, Device::memory>(x.all()));
  });
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer optimizer{recipe, staged, layout, {}, Device{}};
    buffer<float, Device::memory> x(layout.size());
    checkpoint::load(file_of(rank), optimizer, x.all());
    CHECK(optimizer.steps() == 6);
    finish(optimizer, x, rank, uploaded<Device>);
    resumed[at(rank)] = checkpoint::parameters_hash(layout, view<const float, Device::memory>(x.all()));
  });
  ThreadGroup(2, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    Optimizer optimizer{recipe, transport, layout};
    buffer<float> x(layout.size());
    checkpoint::load(file_of(rank), optimizer, x.all());
    finish(optimizer, x, rank, uploaded<executor::host>);
    on_host[at(rank)] = checkpoint::parameters_hash(layout, x.all());
  });
  std::filesystem::remove_all(folder);
  CHECK(once[0] == once[1]);
  CHECK(resumed == once);
  CHECK(on_host == once);
}

TEST_CASE("what a record can't hold is refused") {
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const Layout layout = some_layers();
    buffer<float, Device::memory> x(layout.size());
    Optimizer clipping{Adam<>{}, staged, layout, {.clip_norm = 1}, Device{}};
    CHECK_THROWS_WITH_AS(clipping.record(x.all(), x.all()), doctest::Contains("can't be recorded"),
                         usage_error);
    Optimizer following{
        ErrorFeedbackSgd<>{.error_feedback = {.follows_rate = true}}, staged, layout, {}, Device{}};
    CHECK_THROWS_WITH_AS(following.record(x.all(), x.all()), doctest::Contains("can't be recorded"),
                         usage_error);
  });
}

TEST_CASE("16-bit parameters and gradients") {
  const Layout layout = some_layers();
  const auto narrow = [](const Floats& values) {
    std::vector<bf16> result;
    for (const float value : values) result.push_back(narrowed<bf16>(value));
    return result;
  };
  ThreadGroup(1).run([&](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const OneBitAdam<> recipe{.preconditioner = early};
    Optimizer here{recipe, transport, layout, {}, executor::host{}, Numbers<bf16>{}};
    Optimizer there{recipe, staged, layout, {}, Device{}, Numbers<bf16>{}};
    std::vector<bf16> x = narrow(start(layout)), found(x.size());
    buffer<bf16, Device::memory> y(layout.size()), g(layout.size());
    upload(view<const bf16>(x), y.all());
    for (std::uint64_t step = 1; step <= 8; ++step) {
      const std::vector<bf16> gradients = narrow(gradient(layout, 0, step, 1));
      upload(view<const bf16>(gradients), g.all());
      here.step(x, gradients);
      there.step(y.all(), g.all());
      download(view<const bf16, Device::memory>(y.all()), view<bf16>(found));
      REQUIRE(found == x);
    }
  });
}
