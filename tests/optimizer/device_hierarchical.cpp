// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_others.inc"

// Hierarchies on a device: errors that a device finds.

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

namespace {

using Back = Uniform<8, Stochastic, Symmetric, MaxAbs, PerBlock<128>>;
using Twice =
    ErrorFeedbackSgd<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<128>>, HeavyBall, AveragedResidual<>,
                     Hierarchical<Within<Uniform<8>, Residual, Back>, ScatterGather>>;

}  // namespace

TEST_CASE("hierarchies that compress on both levels have the host's bits") {
  compare(Twice{.topology = {2, {}, {}}}, some_layers(), 4, 6);
}

TEST_CASE("after a gradient that isn't finite ranks of all nodes go on alike") {
  const Layout layout = some_layers();
  std::vector<Floats> last(4), on_host(4);
  ThreadGroup(4, std::chrono::seconds(60)).run([&](Threads& transport) {
    const int rank = transport.rank();
    ThroughHost<Threads, Device> staged(transport.split(0, rank), Device{});
    const Twice recipe{.topology = {2, {}, {}}};
    Optimizer there{recipe, staged, layout, {}, Device{}};
    Optimizer here{recipe, transport, layout};
    auto x = uploaded<Device>(start(layout));
    Floats y = start(layout);
    int failed = 0;
    for (std::uint64_t step = 1; step <= 7; ++step) {
      Floats g = gradient(layout, rank, step, 1);
      if (rank == 2 && step == 3) g[70] = std::numeric_limits<float>::quiet_NaN();
      const auto given = uploaded<Device>(g);
      try {
        there.step(x.all(), given.all());
      } catch (const non_finite_error& failure) {
        failed += failure.culprit() == 2 ? 1 : 100;
      }
      try {
        here.step(y, g);
      } catch (const non_finite_error&) {
        failed += 10;
      }
    }
    CHECK(failed == 11);
    last[at(rank)].resize(at(layout.size()));
    download(view<const float, Device::memory>(x.all()), view<float>(last[at(rank)]));
    on_host[at(rank)] = y;
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(last[rank] == last[0]);
    CHECK(on_host[rank] == on_host[0]);
  }
}

TEST_CASE("a record can't hold errors that are cleared within nodes, of whatever level") {
  using Inner =
      Hierarchical<Within<Uniform<8, Nearest, Symmetric, MaxAbs, PerBlock<128>>, AveragedResidual<>>,
                   ScatterGather>;
  using Nested = ErrorFeedbackSgd<Uniform<4, Nearest, Symmetric, MaxAbs, PerBlock<128>>, HeavyBall, Residual,
                                  Hierarchical<ScatterGather, Inner>>;
  ThreadGroup(1).run([](Threads& transport) {
    ThroughHost<Threads, Device> staged(transport.split(0, 0), Device{});
    const Layout layout = some_layers();
    buffer<float, Device::memory> x(layout.size()), g(layout.size());
    Nested recipe{.topology = {1, {}, {1, {}, {}}}};
    Optimizer cleared{recipe, staged, layout, {}, Device{}};
    CHECK_THROWS_WITH_AS(cleared.record(x.all(), g.all()), doctest::Contains("set its clear_every to 0"),
                         usage_error);
    recipe.topology.outer.inner.error_feedback.clear_every = 0;
    Optimizer kept{recipe, staged, layout, {}, Device{}};
    kept.record(x.all(), g.all());
  });
}
