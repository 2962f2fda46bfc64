// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_mixing.hpp"

// Mixing of compressed packets on a device.

namespace {

ChocoSgd<TopK<>, Gossip, MomentumDirection> some_choco() {
  ChocoSgd<TopK<>, Gossip, MomentumDirection> choco{.consensus_rate = 0.5F};
  choco.compressor.selection.ratio = 0.25;
  return choco;
}

}  // namespace

TEST_CASE("compressed packets") {
  for (const int ranks : {1, 3, 4}) {
    compare(some_choco(), few_layers(), ranks, 5);
    compare(DeepSqueeze<ScaledSign<MeanAbs>>{.consensus_rate = 0.25F}, few_layers(), ranks, 5);
    compare(DcdSgd<>{}, few_layers(), ranks, 5);
  }
}

TEST_CASE("what isn't finite counts as 0 where that is asked for") {
  both(3, [&]<Executor E>(auto& transport) {
    const Layout layout = few_layers();
    Trace trace;
    Optimizer optimizer{
        Beer<Uniform<8>>{.consensus_rate = 0.5F}, transport, layout, {.on_non_finite = NonFinite::zero}, E{}};
    auto x = uploaded<E>(start(layout));
    for (std::uint64_t step = 1; step <= 4; ++step) {
      Floats g = gradient(layout, transport.rank(), step, 1);
      if (transport.rank() == 1 && step == 2) {
        g[3] = std::numeric_limits<float>::quiet_NaN();
        g[at(layout.segments()[1].offset)] = std::numeric_limits<float>::infinity();
      }
      optimizer.step(x.all(), uploaded<E>(g).all());
      Look look{trace.steps.emplace_back()};
      look("parameters", x.all(), 0);
      optimizer.walk(look);
    }
    for (const auto& [name, bytes] : trace.steps.back())
      if (name != "mixed_steps@0" && name != "last_rate@0")
        for (std::size_t k = 0; k + 4 <= bytes.size(); k += 4) {
          float value = 0;
          std::memcpy(&value, bytes.data() + k, sizeof value);
          REQUIRE(std::isfinite(value));
        }
    return trace;
  });
}

/// Saved on the host after 3 steps; from there on once more on the host, and on the device.
template <class R>
void check_resume(const R& recipe, int ranks) {
  const auto folder = std::filesystem::temp_directory_path() / ("terse_mixing_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Layout layout = few_layers();
  std::vector<std::string> once(at(ranks)), again(at(ranks)), there(at(ranks));
  const auto finish = [&]<Executor E>(auto& optimizer, auto& x, E) {
    for (std::uint64_t step = optimizer.steps() + 1; step <= 6; ++step) {
      const auto g = uploaded<E>(gradient(layout, optimizer.rank(), step, 1));
      optimizer.step(x.all(), g.all());
    }
    return checkpoint::parameters_hash(layout, view<const float, typename E::memory>(x.all()));
  };
  ThreadGroup(ranks, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    const auto file = folder / std::to_string(rank);
    Optimizer optimizer{recipe, transport, layout};
    auto x = uploaded<executor::host>(start(layout));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto g = uploaded<executor::host>(gradient(layout, rank, step, 1));
      optimizer.step(x.all(), g.all());
    }
    checkpoint::save(file, optimizer, x.all());
    once[at(rank)] = finish(optimizer, x, executor::host{});

    Optimizer second{recipe, transport, layout};
    buffer<float> y(layout.size());
    checkpoint::load(file, second, y.all());
    again[at(rank)] = finish(second, y, executor::host{});

    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    Optimizer third{recipe, staged, layout, {}, Device{}};
    buffer<float, Device::memory> z(layout.size());
    checkpoint::load(file, third, z.all());
    there[at(rank)] = finish(third, z, Device{});
  });
  std::filesystem::remove_all(folder);
  CHECK(again == once);
  CHECK(there == once);
}

TEST_CASE("compressed gossip goes through a file") {
  check_resume(some_choco(), 3);
  check_resume(Beer<Uniform<8>>{.consensus_rate = 0.5F}, 3);
}
