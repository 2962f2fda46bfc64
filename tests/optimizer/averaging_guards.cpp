// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "guards.inc"
#include "terse/compressor/chain.hpp"
#include "terse/compressor/random_k.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

// Guards of the gradient-averaging recipes: non-finite gradients, allocations, and what goes with local momentum.

namespace {

/// Calls f(recipe) for one recipe of each kind; those whose stages differ switch after five steps.
template <class F>
void each_recipe(F f) {
  f(ErrorFeedbackSgd<ScaledSign<MeanAbs>, LocalMomentumBefore>{
      .learning_rate = 1e-2F, .warmup_steps = 5, .error_feedback = {.follows_rate = true}});
  f(ErrorFeedbackSgd<ScaledSign<MeanAbs>, HeavyBall>{.learning_rate = 1e-2F, .warmup_steps = 5});
  f(SignSgd<>{.learning_rate = 1e-3F});
  f(DeepGradientCompression<>{.learning_rate = 1e-2F,
                              .momentum_correction = {.nesterov = true},
                              .compressor = {.selection = {.ratio = 0.05, .warmup_steps = 6}}});
  f(ErrorFeedbackSgd<Chain<Uniform<4>, Strata<false>, Largest>, NoMomentum>{
      .learning_rate = 1e-2F,
      .warmup_steps = 5,
      .compressor = {.selection = {.first = {.ratio = 0.5}, .second = {.ratio = 0.4}}}});
  f(QuantizedSgd<>{.learning_rate = 1e-2F, .warmup_steps = 5});
  f(Ef21Sgd<TopK<>, HeavyBall>{.learning_rate = 1e-2F, .compressor = {.selection = {.ratio = 0.05}}});
}

}  // namespace

TEST_CASE("non-finite gradients are skipped or zeroed by all ranks alike, and never stay") {
  each_recipe([](const auto& recipe) { check_policies(recipe); });
}

TEST_CASE("non-finite gradients throw on every rank in the same step and move nothing") {
  each_recipe([](const auto& recipe) { check_throw(recipe); });
}

TEST_CASE("a step allocates nothing, at any stage") {
  for (const Options& options : {Options{}, Options{.on_non_finite = NonFinite::skip, .clip_norm = 1}})
    each_recipe([&](const auto& recipe) { check_allocations(recipe, options); });
}

TEST_CASE("the start of EF21 may fail and be made up for") {
  const Layout layout = two_kinds();
  ThreadGroup(2, std::chrono::seconds(20)).run([&](Threads& transport) {
    const Ef21Sgd<TopK<>, HeavyBall> recipe{.compressor = {.selection = {.ratio = 0.05}}};
    Optimizer optimizer{recipe, transport, layout}, other{recipe, transport, layout};
    Floats x = start(layout), y = x, g = gradient(layout, transport.rank(), 1, 1), bad = g;
    if (transport.rank() == 0) bad[3] = not_a_number;
    CHECK_THROWS_AS(optimizer.step(x, bad), non_finite_error);
    CHECK(x == y);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      g = gradient(layout, transport.rank(), step, 1);
      optimizer.step(x, g);
      other.step(y, g);
    }
    CHECK(x == y);
    Seen a, b;
    optimizer.walk(a);
    other.walk(b);
    CHECK(a.parts == b.parts);
  });
}
