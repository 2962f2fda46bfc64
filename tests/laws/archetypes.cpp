// SPDX-License-Identifier: Apache-2.0

// Types with nothing but what the contracts promise run in real optimizers, with the bits of the library's own policies.

#include "archetypes.hpp"

#include <doctest/doctest.h>

#include "terse/laws/check.hpp"
#include "terse/laws/rule.hpp"
#include "terse/terse.hpp"

namespace {

using namespace terse;

using Models = std::vector<std::vector<float>>;

Layout layout_of_three() {
  Layout layout;
  layout.add({"matrix", {30, 7}}).add({"excluded", {70}, 1, 1, false}).add({"bias", {5}});
  return layout;
}

float noise(int rank, std::uint64_t step, std::size_t i) {
  return static_cast<float>(Draw::local(1, rank, step, Purpose::user).bits(i) >> 40) * 0x1p-23F - 1;
}

/// Five steps of this rank; what its parameters become.
template <class R, class T>
std::vector<float> steps(const R& recipe, T& transport) {
  const Layout layout = layout_of_three();
  Optimizer optimizer{recipe, transport, layout};
  const auto size = static_cast<std::size_t>(layout.size());
  std::vector<float> x(size), g(size);
  for (std::size_t i = 0; i < size; ++i) x[i] = noise(0, 0, i);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    for (std::size_t i = 0; i < size; ++i) g[i] = noise(transport.rank() + 1, step, i);
    optimizer.step(x, g);
  }
  return x;
}

template <class R>
Models models(const R& recipe, int ranks) {
  Models all(static_cast<std::size_t>(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    all[static_cast<std::size_t>(transport.rank())] = steps(recipe, transport);
  });
  return all;
}

/// The same bits on all ranks, of models that have moved.
template <class A, class B>
void same(const A& archetype, const B& known) {
  for (const int ranks : {2, 3}) {
    const Models one = models(archetype, ranks), other = models(known, ranks);
    CHECK(one == other);
    for (const std::vector<float>& model : one) {
      CHECK(model[0] != noise(0, 0, 0));
      for (const float x : model) CHECK(std::isfinite(x));
    }
  }
}

using ByQuantizer = Packed<archetype::Quantizer, PerSegment>;
using BySelection = Sparse<archetype::Selection, Dense, PerSegment>;

}  // namespace

TEST_CASE("a momentum correction and a preconditioner") {
  same(Averaging<archetype::Correction>{}, Averaging<HeavyBall>{});
  same(Averaging<archetype::Preconditioner>{}, Averaging<AdagradSum>{});
  same(Averaging<archetype::Layers>{}, Averaging<LayerWise<NoPreconditioner>>{});
  same(Averaging<archetype::Correction, archetype::Preconditioner, TopK<>, AllGather>{.compressor = {{0.1}}},
       Averaging<HeavyBall, AdagradSum, TopK<>, AllGather>{.compressor = {{0.1}}});
}

TEST_CASE("mixing rules and a local direction, on a graph") {
  same(ParameterMixing<archetype::Mixing, terse::Mixing<graph::Ring>>{}, DSgd<terse::Mixing<graph::Ring>>{});
  same(ParameterMixing<archetype::Mixing, terse::Mixing<archetype::Graph>>{},
       DSgd<terse::Mixing<graph::Ring>>{});
  same(ParameterMixing<archetype::Tracking, terse::Mixing<archetype::Graph>>{},
       GradientTracking<terse::Mixing<graph::Ring>>{});
  same(ParameterMixing<archetype::Direction, terse::Mixing<archetype::Graph>>{},
       ParameterMixing<MomentumDirection, terse::Mixing<graph::Ring>>{});
}

TEST_CASE("an error feedback and a quantizer") {
  using Known = ScaledSign<MeanAbs>;
  same(Averaging<Known, archetype::Feedback>{}, Averaging<Known, Residual>{});
  same(Averaging<ByQuantizer, archetype::Feedback>{}, Averaging<Known, Residual>{});
  same(Averaging<ByQuantizer, archetype::Feedback, Ring>{}, Averaging<Known, Residual, Ring>{});
  const laws::Report report = laws::check<ByQuantizer, archetype::Feedback>({}, {.draws = 200});
  CHECK_MESSAGE(report, report.text());
}

TEST_CASE("a compressor from scratch") {
  same(Averaging<archetype::Compressor, NoErrorFeedback>{}, Averaging<>{});
  same(Averaging<archetype::Compressor, archetype::Feedback, AllGather>{}, Averaging<AllGather>{});
  const laws::Report report = laws::check<archetype::Compressor>({}, {.draws = 200});
  CHECK_MESSAGE(report, report.text());
}

/// Ef21, whose view has another name and stands elsewhere.
struct Copies : Ef21 {
  template <Executor E>
  struct State : Ef21::State<E> {
    struct Seen : Ef21::View {};
    State(const Copies& policy, index_t begin, index_t end) : Ef21::State<E>(policy, begin, end) {}
    Seen view() { return {Ef21::State<E>::view()}; }
  };
};

TEST_CASE("an error feedback's view may have any name") {
  using Known = ScaledSign<MeanAbs>;
  same(Averaging<Known, HeavyBall, Copies>{}, Averaging<Known, HeavyBall, Ef21>{});
}

TEST_CASE("a selection") {
  same(Averaging<BySelection, Residual>{}, Averaging<TopK<>, Residual>{.compressor = {{1.0}}});
  const laws::Report report = laws::check<BySelection>({}, {.draws = 200});
  CHECK_MESSAGE(report, report.text());
}

TEST_CASE("a topology") {
  using Known = ScaledSign<MeanAbs>;
  same(Averaging<Known, archetype::Topology>{}, Averaging<Known, AllGather>{});
  same(Averaging<TopK<>, HeavyBall, archetype::Topology>{.compressor = {{0.1}}},
       Averaging<TopK<>, HeavyBall, AllGather>{.compressor = {{0.1}}});
}

TEST_CASE("a recipe") { same(archetype::Recipe{}, Averaging<>{}); }

TEST_CASE("a transport") {
  const auto same_over = [](const auto& recipe) {
    for (const int ranks : {1, 2, 3}) {
      Models all(static_cast<std::size_t>(ranks));
      archetype::run(ranks, [&](archetype::Transport& transport) {
        all[static_cast<std::size_t>(transport.rank())] = steps(recipe, transport);
      });
      CHECK(all == models(recipe, ranks));
    }
  };
  same_over(Averaging<ScaledSign<MeanAbs>, HeavyBall>{});
  same_over(Averaging<TopK<>, Ring>{.compressor = {{0.1}}});
  same_over(DSgd<terse::Mixing<graph::Ring>>{});
  same_over(archetype::Recipe{});
}

TEST_CASE("rules keep the laws of rules") {
  for (const laws::Report& report : {laws::check_momentum_correction<archetype::Correction>(),
                                     laws::check_preconditioner<archetype::Preconditioner>(),
                                     laws::check_preconditioner<archetype::Layers>()})
    CHECK_MESSAGE(report, report.text());
}
