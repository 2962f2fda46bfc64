// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <limits>

#include "support.hpp"
#include "terse/exchange/hierarchical.hpp"

// What an optimizer says of itself: bytes of steps, ahead and after, and the rates of segments.

using namespace terse;
using namespace terse::test;

namespace {

constexpr auto infinity = std::numeric_limits<float>::infinity();

Layout layout_of_three() {
  Layout layout;
  layout.add({"weight", {40, 50}}).add({"bias", {50}, 1, 0, false}).add({"head", {333}});
  return layout;
}

/// What a rank saw of a step.
struct Step {
  StepResult result;
  std::uint64_t metered = 0;
  bool full_precision = false;
};
struct Figures {
  StepBytes ahead, behind;  // as said before and after these steps
  std::vector<Step> steps;
};

/// Steps of all ranks over `wrap(transport)`, with a meter around the transport.
template <class R, class Wrap>
std::vector<Figures> figures(const R& recipe, int ranks, std::uint64_t steps, const Options& options,
                             const Wrap& wrap) {
  std::vector<Figures> all(at(ranks));
  ThreadGroup(ranks, std::chrono::seconds(20)).run([&](Threads& raw) {
    const Layout layout = layout_of_three();
    Metered<Threads> meter(raw.split(0, raw.rank()));
    Metered<Threads> metered = meter.split(0, raw.rank());
    auto transport = wrap(std::move(metered));
    Optimizer optimizer{recipe, transport, layout, options};
    Floats x = start(layout);
    Figures& mine = all[at(raw.rank())];
    mine.ahead = optimizer.bytes_per_step();
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const std::uint64_t before = meter.traffic().bytes_sent();
      const Floats g = gradient(layout, raw.rank(), step, 1);
      Step seen;
      seen.full_precision = optimizer.full_precision();
      seen.result = optimizer.step(x, g);
      seen.metered = meter.traffic().bytes_sent() - before;
      mine.steps.push_back(seen);
    }
    mine.behind = optimizer.bytes_per_step();
  });
  return all;
}
struct AsItIs {
  template <class T>
  T operator()(T transport) const {
    return transport;
  }
};

/// Of recipes whose packets don't vary: from the second step on `bytes_per_step` says exactly what is sent.
template <class R>
void check_exact(const R& recipe, std::uint64_t steps = 4, const Options& options = {}) {
  CAPTURE(type_name<R>());
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const auto all = figures(recipe, ranks, steps, options, AsItIs{});
    for (const Figures& mine : all)
      for (std::size_t k = 0; k < mine.steps.size(); ++k) {
        CAPTURE(k);
        const Step& step = mine.steps[k];
        CHECK(step.result.applied);
        CHECK(step.result.bytes_sent == step.metered);
        if (k == 0) continue;  // compares parameters
        const index_t ahead = step.result.compressed ? mine.ahead.compressed : mine.ahead.full_precision;
        CHECK(step.result.bytes_sent == static_cast<std::uint64_t>(ahead));
      }
  }
}
template <class P>
OneBitAdam<P> frozen_after_two() {
  return {.preconditioner = {.freeze = AtStep{2}}};
}

}  // namespace

TEST_CASE("bytes of steps are known ahead, and are what a meter counts, over every topology") {
  check_exact(frozen_after_two<ScatterGather>());
  check_exact(frozen_after_two<Ring>());
  check_exact(frozen_after_two<Star>());
  check_exact(frozen_after_two<AllGather>());
  check_exact(Adam<>{});
  check_exact(Adam<Ring>{});
  check_exact(Adam<Star>{});
  check_exact(OneBitLamb<>{.preconditioner = {.freeze = AtStep{2}}});
  for (const int ranks : {4, 6}) {
    CAPTURE(ranks);
    OneBitAdam<Hierarchical<Ring, ScatterGather>> recipe{.preconditioner = {.freeze = AtStep{2}},
                                                         .topology = {.ranks_per_node = 2}};
    for (const Figures& mine : figures(recipe, ranks, 4, {}, AsItIs{})) {
      CHECK(mine.steps[1].result.bytes_sent == static_cast<std::uint64_t>(mine.ahead.full_precision));
      CHECK(mine.steps[3].result.bytes_sent == static_cast<std::uint64_t>(mine.ahead.compressed));
    }
  }
}

TEST_CASE("bytes of decentralized steps") {
  check_exact(DSgd<>{});
  check_exact(DecentLaM<>{});
  check_exact(GradientTracking<>{});
  check_exact(ChocoSgd<>{});
  for (const Figures& mine : figures(DSgd<>{.average_every = 3}, 4, 6, {}, AsItIs{}))
    for (std::size_t k = 1; k < mine.steps.size(); ++k)
      CHECK(mine.steps[k].result.bytes_sent <= static_cast<std::uint64_t>(mine.ahead.full_precision));
}

TEST_CASE("an exact mean among steps with few neighbours is what costs most") {
  using OnePeer = DSgd<Mixing<graph::OnePeerExponential>>;
  for (const Figures& mine : figures(OnePeer{.average_every = 3}, 4, 6, {}, AsItIs{}))
    for (const std::size_t k : std::initializer_list<std::size_t>{2, 5})
      CHECK(mine.steps[k].result.bytes_sent == static_cast<std::uint64_t>(mine.ahead.full_precision));
}

TEST_CASE("bytes of local methods: nothing but in steps that meet") {
  for (const Figures& mine : figures(LocalSgd<Adam<>>{.period = 3}, 3, 9, {}, AsItIs{})) {
    for (std::size_t k = 1; k < mine.steps.size(); ++k) {
      CAPTURE(k);
      const auto sent = (k + 1) % 3 == 0 ? static_cast<std::uint64_t>(mine.ahead.full_precision) : 0;
      CHECK(mine.steps[k].result.bytes_sent == sent);
      CHECK(mine.steps[k].result.bytes_sent == mine.steps[k].metered);
      CHECK(!mine.steps[k].result.compressed);
    }
    CHECK(mine.ahead.full_precision > 0);
    CHECK(mine.ahead.compressed == 0);
  }
  for (const Figures& mine : figures(LocalSgd<Adam<>, Sign>{.period = 3}, 3, 9, {}, AsItIs{}))
    for (std::size_t k = 1; k < mine.steps.size(); ++k) {
      CAPTURE(k);
      const bool meets = (k + 1) % 3 == 0;
      CHECK(mine.steps[k].result.bytes_sent ==
            (meets ? static_cast<std::uint64_t>(mine.ahead.compressed) : 0));
      CHECK(mine.steps[k].result.compressed == meets);
    }
  const auto bounded = [](const auto& recipe) {
    for (const Figures& mine : figures(recipe, 3, 9, {}, AsItIs{}))
      for (std::size_t k = 1; k < mine.steps.size(); ++k) {
        CHECK(mine.steps[k].result.bytes_sent == mine.steps[k].metered);
        CHECK(mine.steps[k].result.bytes_sent <= static_cast<std::uint64_t>(mine.ahead.full_precision));
      }
  };
  bounded(OverlapLocalSgd<Adam<>>{.period = 2});
  bounded(StreamingDiLoCo<Adam<>>{.period = 3, .schedule = {.count = 2, .delay = 2}});
}

TEST_CASE("where packets vary, what is said ahead is the most") {
  Averaging<TopK<>> recipe{.learning_rate = 0.1F};
  for (const Figures& mine : figures(recipe, 4, 5, {}, AsItIs{}))
    for (std::size_t k = 1; k < mine.steps.size(); ++k) {
      const Step& step = mine.steps[k];
      CHECK(step.result.compressed);
      CHECK(step.result.bytes_sent == step.metered);
      CHECK(step.result.bytes_sent <= static_cast<std::uint64_t>(mine.ahead.compressed));
      CHECK(step.result.bytes_sent > 0);
    }
}

TEST_CASE("what the ranks of a node hear of what it has sent counts") {
  const auto check = [](const auto& topology, int ranks) {
    CAPTURE(ranks);
    using P = std::remove_cvref_t<decltype(topology)>;
    const Averaging<RandomK, FactorMasking, Residual, P> recipe{.learning_rate = 0.1F, .topology = topology};
    for (const Figures& mine : figures(recipe, ranks, 3, {}, AsItIs{}))
      for (std::size_t k = 1; k < mine.steps.size(); ++k) {
        CHECK(mine.steps[k].result.bytes_sent == mine.steps[k].metered);
        CHECK(mine.steps[k].result.bytes_sent == static_cast<std::uint64_t>(mine.ahead.compressed));
      }
  };
  check(Hierarchical<>{2}, 2);
  check(Hierarchical<>{2}, 6);
  check(Hierarchical<Ring, AllGather>{3}, 6);
  check(Hierarchical<ScatterGather, Hierarchical<Ring>>{2, {}, {2}}, 8);
}

TEST_CASE("norms that ranks agree on count") {
  const Options clips{.clip_norm = 0.5F}, skips{.on_non_finite = NonFinite::skip};
  check_exact(frozen_after_two<ScatterGather>(), 4, clips);
  check_exact(frozen_after_two<ScatterGather>(), 4, skips);
  check_exact(DSgd<>{}, 4, clips);
  const auto plain = figures(frozen_after_two<Ring>(), 3, 0, {}, AsItIs{});
  const auto clipped = figures(frozen_after_two<Ring>(), 3, 0, clips, AsItIs{});
  CHECK(clipped[1].ahead.compressed == plain[1].ahead.compressed + 16);
  // What is said of exact steps stays true behind them.
  for (const Figures& mine : figures(frozen_after_two<Ring>(), 3, 4, clips, AsItIs{}))
    CHECK(mine.behind == mine.ahead);
  CHECK(figures(ChocoSgd<>{}, 3, 0, clips, AsItIs{})[0].ahead.full_precision == 0);
  CHECK(figures(ChocoSgd<>{}, 3, 0, skips, AsItIs{})[0].ahead.full_precision == 0);
}

TEST_CASE("a step that is skipped has sent the norms") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layout_of_three();
    Optimizer optimizer{Adam<>{}, transport, layout, {.on_non_finite = NonFinite::skip}};
    Floats x = start(layout), g = gradient(layout, transport.rank(), 1, 1);
    CHECK(optimizer.step(x, g).applied);
    if (transport.rank() == 1) g[5] = infinity;
    const StepResult skipped = optimizer.step(x, g);
    CHECK(!skipped.applied);
    CHECK(!skipped.compressed);
    CHECK(skipped.bytes_sent == 16);
  });
}

TEST_CASE("messages that left in begin belong to the step, and users' own messages don't") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Layout layout = layout_of_three();
    using Rule = AdaptWithCombine<GradientDirection>;
    Optimizer optimizer{ParameterMixing<Rule>{.learning_rate = 0.1F}, transport, layout};
    Floats x = start(layout);
    std::uint64_t first = 0;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const Floats g = gradient(layout, transport.rank(), step, 1);
      if (step % 2 == 0) optimizer.begin(x);
      barrier(optimizer.channel());
      const StepResult result = optimizer.step(x, g);
      CHECK(result.bytes_sent == static_cast<std::uint64_t>(optimizer.bytes_per_step().full_precision));
      first = step == 1 ? result.bytes_sent : first;
      CHECK(result.bytes_sent == first);
      CHECK(first > 0);
    }
  });
}

TEST_CASE("messages that left in begin count once where the step is skipped") {
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& raw) {
    const Layout layout = layout_of_three();
    Metered<Threads> meter(raw.split(0, raw.rank()));
    using Rule = AdaptWithCombine<GradientDirection>;
    Optimizer optimizer{
        ParameterMixing<Rule>{.learning_rate = 0.1F}, meter, layout, {.on_non_finite = NonFinite::skip}};
    Floats x = start(layout);
    const Floats g = gradient(layout, raw.rank(), 1, 1);
    Floats bad = g;
    bad[5] = infinity;
    optimizer.step(x, g);
    const auto most = static_cast<std::uint64_t>(optimizer.bytes_per_step().full_precision);
    const std::uint64_t before = meter.traffic().bytes_sent();
    optimizer.begin(x);
    const StepResult skipped = optimizer.step(x, bad), taken = optimizer.step(x, g);
    CHECK(!skipped.applied);
    CHECK(taken.applied);
    CHECK(skipped.bytes_sent == most);
    CHECK(taken.bytes_sent == 16);
    CHECK(skipped.bytes_sent + taken.bytes_sent == meter.traffic().bytes_sent() - before);
  });
}

TEST_CASE("bytes over other transports") {
  const auto plain = figures(frozen_after_two<Ring>(), 3, 4, {}, AsItIs{});
  const auto any = figures(frozen_after_two<Ring>(), 3, 4, {},
                           [](auto transport) { return AnyTransport(std::move(transport)); });
  for (int r = 0; r < 3; ++r) {
    CHECK(any[at(r)].ahead == plain[at(r)].ahead);
    for (int k = 0; k < 4; ++k)
      CHECK(any[at(r)].steps[at(k)].result.bytes_sent == plain[at(r)].steps[at(k)].result.bytes_sent);
  }
}

namespace {

/// All ranks' parameters after six steps, of rates that `change(optimizer, step)` sets.
template <class R, class Change>
std::vector<Floats> train(const R& recipe, const Layout& layout, const Change& change) {
  std::vector<Floats> result(3);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      change(optimizer, step);
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    }
    result[at(transport.rank())] = x;
  });
  return result;
}
/// Scales from the beginning, and the same ones set before the first step, give the same bits; those of a segment that is
/// silenced later keep it where it is.
template <class R>
void check_rescaled(const R& recipe) {
  CAPTURE(type_name<R>());
  const Layout layout = layout_of_three();
  Layout scaled;
  scaled.add({"weight", {40, 50}, 0.5F, 2}).add({"bias", {50}, 3, 0.25F, false}).add({"head", {333}});
  const auto wanted = train(recipe, scaled, [](auto&, std::uint64_t) {});
  const auto found = train(recipe, layout, [](auto& optimizer, std::uint64_t step) {
    if (step > 1) return;
    optimizer.rescale("weight", 0.5F, 2);
    optimizer.rescale("bias", 3, 0.25F);
  });
  const auto untouched = train(recipe, layout, [](auto&, std::uint64_t) {});
  for (int r = 0; r < 3; ++r) {
    CHECK(found[at(r)] == wanted[at(r)]);
    CHECK(found[at(r)] != untouched[at(r)]);
  }
}

}  // namespace

TEST_CASE("segments can be given other rates, whatever the recipe") {
  check_rescaled(Adam<>{.weight_decay = 0.1F});
  check_rescaled(OneBitAdam<>{.weight_decay = 0.1F, .preconditioner = {.freeze = AtStep{2}}});
  check_rescaled(Lamb<>{.weight_decay = 0.1F});
  check_rescaled(OneBitLamb<>{.weight_decay = 0.1F, .preconditioner = {.freeze = AtStep{2}}});
  check_rescaled(ZeroOneAdam<>{.weight_decay = 0.1F});
  check_rescaled(DecentLaM<>{.weight_decay = 0.1F});
  check_rescaled(ChocoSgd<>{.weight_decay = 0.1F});
  check_rescaled(LocalSgd<Adam<>>{.inner = {.weight_decay = 0.1F}, .period = 2});
  check_rescaled(
      DiLoCo<LocalSgd<Adam<>>>{.inner = {.inner = {.weight_decay = 0.1F}, .period = 2}, .period = 4});
  check_rescaled(SwarmSgd<Adam<>>{.inner = {.weight_decay = 0.1F}});
}

TEST_CASE("rates may change in the middle of a run, and back") {
  const Layout layout = layout_of_three();
  const auto found = train(Adam<>{}, layout, [&](auto& optimizer, std::uint64_t step) {
    if (step == 3) optimizer.rescale("head", 0, 0);
    if (step == 5) optimizer.rescale("head", 1, 1);
  });
  std::vector<Floats> early(3);
  ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{Adam<>{}, transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      if (step == 3) {
        early[at(transport.rank())] = x;
        optimizer.rescale("head", 0, 0);
      }
      optimizer.step(x, gradient(layout, transport.rank(), step, 1));
    }
    const Segment& head = layout.segments()[2];
    for (index_t i = 0; i < head.offset; ++i)
      if (i < 2000) CHECK(x[at(i)] != early[at(transport.rank())][at(i)]);
    for (index_t i = head.offset; i < head.offset + head.count; ++i)
      CHECK(x[at(i)] == early[at(transport.rank())][at(i)]);
    CHECK(optimizer.layout().segments()[2].learning_rate_scale == 0);
  });
  const auto untouched = train(Adam<>{}, layout, [](auto&, std::uint64_t) {});
  CHECK(found[0] != untouched[0]);
  CHECK(found[0] == found[2]);
}

TEST_CASE("ranks that have different rates refuse each other's packets") {
  const auto run_apart = [](const auto& recipe) {
    ThreadGroup(3, std::chrono::seconds(20)).run([&](Threads& transport) {
      const Layout layout = layout_of_three();
      Optimizer optimizer{recipe, transport, layout};
      Floats x = start(layout);
      optimizer.step(x, gradient(layout, transport.rank(), 1, 1));
      if (transport.rank() == 2) optimizer.rescale("bias", 2, 1);
      optimizer.step(x, gradient(layout, transport.rank(), 2, 1));
    });
  };
  CHECK_THROWS_AS(run_apart(Adam<>{}), error);
  CHECK_THROWS_WITH_AS(run_apart(DSgd<>{}), doctest::Contains("hyper-parameters"), wire_error);
}

TEST_CASE("rates that can't be, and when they can't be set") {
  ThreadGroup(1).run([](Threads& transport) {
    const Layout layout = layout_of_three();
    Optimizer optimizer{Adam<>{}, transport, layout};
    CHECK_THROWS_WITH_AS(optimizer.rescale("tail", 1, 1), doctest::Contains("'tail'"), usage_error);
    CHECK_THROWS_AS(optimizer.rescale("head", -1, 1), usage_error);
    CHECK_THROWS_AS(optimizer.rescale("head", 1, infinity), usage_error);
    CHECK_THROWS_AS(optimizer.rescale("head", std::numeric_limits<float>::quiet_NaN(), 1), usage_error);
    CHECK(optimizer.layout().segments()[2].learning_rate_scale == 1);
    CHECK(optimizer.layout().segments()[2].weight_decay == 1);

    using Rule = AdaptWithCombine<GradientDirection>;
    Optimizer early{ParameterMixing<Rule>{.learning_rate = 0.1F}, transport, layout};
    Floats x = start(layout);
    early.begin(x);
    CHECK_THROWS_WITH_AS(early.rescale("head", 1, 2), doctest::Contains("begin"), usage_error);
    early.step(x, gradient(layout, 0, 1, 1));
    CHECK_NOTHROW(early.rescale("head", 1, 2));
  });
}
