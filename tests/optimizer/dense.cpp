// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "reference/dense.hpp"
#include "support.hpp"
#include "terse/optimizer/lars.hpp"

// Adam, MomentumSgd and Lars against their oracles in double.

using namespace terse;
using namespace terse::test;

namespace {

Layout layers() {
  Layout layout;
  layout.add({"w", {65, 9}});
  layout.add({"b", {7}, 2, 0});
  layout.add({"v", {4097}, 0.5F, 0.25F});
  return layout;
}

template <class R, class Oracle>
void compare(const R& recipe, Oracle oracle, const Layout& layout, int ranks, const Options& options,
             const char* momentum = "momentum") {
  CAPTURE(ranks);
  const History ours = run(recipe, layout, ranks, 50, 1, options, Unchanged{});
  for (std::uint64_t step = 1; step <= 50; ++step) {
    CAPTURE(step);
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, 1));
    oracle.step(g, static_cast<double>(recipe.learning_rate));
    const std::vector<Snapshot>& now = ours[step - 1];
    const auto all = [](const Segment&) { return true; };
    CHECK(relative_error(layout, now[0].parameters, oracle.parameters, all) < 1e-5);
    CHECK(relative_error(layout, now[0].state.parts.at(momentum), oracle.momentum, all) < 1e-5);
    for (const Snapshot& other : now) CHECK(other.parameters == now[0].parameters);
  }
}

}  // namespace

TEST_CASE("Adam follows the oracle, with and without bias correction, decay and clipping") {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool corrected : {false, true})
      for (const float clip : {std::numeric_limits<float>::infinity(), 3.0F}) {
        const Adam<> recipe{.learning_rate = 1e-2F, .weight_decay = 0.1F, .bias_correction = corrected};
        reference::Adam<>::Options options;
        options.beta1 = static_cast<double>(recipe.beta1);
        options.beta2 = static_cast<double>(recipe.beta2);
        options.epsilon = static_cast<double>(recipe.epsilon);
        options.weight_decay = static_cast<double>(recipe.weight_decay);
        options.bias_correction = corrected;
        options.clip_norm = static_cast<double>(clip);
        compare(recipe, reference::Adam<>(layers(), ranks, options, start(layers())), layers(), ranks,
                Options{.clip_norm = clip});
      }
}

TEST_CASE("MomentumSgd follows the oracle, heavy ball and Nesterov") {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const bool nesterov : {false, true}) {
      const MomentumSgd<> recipe{
          .learning_rate = 1e-2F, .weight_decay = 0.1F, .momentum_correction = {.nesterov = nesterov}};
      reference::MomentumSgd<>::Options options;
      options.momentum = static_cast<double>(recipe.momentum_correction.momentum);
      options.weight_decay = static_cast<double>(recipe.weight_decay);
      options.nesterov = nesterov;
      const float clip = nesterov ? 3.0F : 1000.0F;  // reached, and never
      options.clip_norm = static_cast<double>(clip);
      compare(recipe, reference::MomentumSgd<>(layers(), ranks, options, start(layers())), layers(), ranks,
              Options{.clip_norm = clip});
    }
}

TEST_CASE("Lars follows the oracle: layer-wise rates for matrices, plain ones for vectors") {
  for (const int ranks : {1, 3})
    for (const bool nesterov : {false, true}) {
      const Lars<> recipe{.learning_rate = 2, .nesterov = nesterov, .weight_decay = 0.1F, .trust = 0.01F};
      reference::Lars<>::Options options;
      options.momentum = static_cast<double>(recipe.momentum);
      options.weight_decay = static_cast<double>(recipe.weight_decay);
      options.trust = static_cast<double>(recipe.trust);
      options.epsilon = static_cast<double>(recipe.epsilon);
      options.nesterov = nesterov;
      options.clip_norm = 3;
      Layout layout;
      layout.add({"w", {65, 9}});
      layout.add({"b", {7}, 0.01F, 0});
      layout.add({"empty", {0, 3}});
      layout.add({"v", {91, 45}, 0.5F, 0.25F});
      compare(recipe, reference::Lars<>(layout, ranks, options, start(layout)), layout, ranks,
              Options{.clip_norm = 3}, "velocity");
    }
}

TEST_CASE("Lars steps the same way in any unit of the gradients") {
  Layout layout;
  layout.add({"w", {65, 9}});
  const auto after = [&](float scale) {
    Floats x = start(layout);
    ThreadGroup(1, std::chrono::seconds(5)).run([&](Threads& transport) {
      Optimizer optimizer{Lars<>{.learning_rate = 2, .trust = 0.01F}, transport, layout};
      for (std::uint64_t step = 1; step <= 4; ++step) optimizer.step(x, gradient(layout, 0, step, 3), scale);
    });
    return x;
  };
  CHECK(after(0x1p-40F) == after(1));
}

TEST_CASE("Lars takes the plain rate where a norm is 0") {
  Layout layout;
  layout.add({"w", {8, 8}});
  ThreadGroup(1, std::chrono::seconds(5)).run([&](Threads& transport) {
    Optimizer optimizer{Lars<>{.learning_rate = 0.5F, .momentum = 0}, transport, layout};
    Floats x(64), g(64, 1.0F);
    optimizer.step(x, g);
    CHECK(x == Floats(64, -0.5F));
    optimizer.step(x, Floats(64));
    CHECK(x == Floats(64, -0.5F));
  });
}
