// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "compositions.hpp"
#include "terse/compressor/random_k.hpp"

// Compositions of one stage that compress, against the oracle of all compositions. Over AllGather, which compresses once:
// other topologies have the oracles of their own methods.

using namespace terse;
using namespace terse::test;

namespace {

// Where messages are gradients, both sides encode the same floats, so that decisions are the same and nothing but fp32's
// rounding of the mean, of buffers and parameters is left, as without compression. Where they are momenta, each side rounds
// its own to fp32: a sign or a pick would differ where two values are that close, which none of these runs meets. 4e-7 is
// measured.
constexpr double rounding = 2e-6;
// Ef21 adds up in fp32 what arrives, step by step: 30 roundings of 2^-24 more. 1.2e-6 is measured.
constexpr double adding_up = 5e-6;

constexpr Training clipped{.clip_norm = 6}, four{.ranks = 4, .steps = 40}, paused{.still_step = 12};
const TopK<> fifth{.selection = {.ratio = 0.2}};

}  // namespace

TEST_CASE("adaptive methods on compressed gradients follow the oracle") {
  follows_oracle(Adam<TopK<>, AllGather>{.learning_rate = 0.03F, .weight_decay = 0.1F, .compressor = fifth},
                 rounding, clipped);
  follows_oracle(Adam<Qsgd<4>, AllGather>{.learning_rate = 0.03F, .weight_decay = 0.1F, .warmup_steps = 5},
                 rounding, clipped);
  follows_oracle(Lamb<TopK<>, AllGather>{.learning_rate = 0.03F, .weight_decay = 0.1F, .compressor = fifth},
                 rounding);
  follows_oracle(Lars<TopK<>, AllGather>{.learning_rate = 0.05F,
                                         .weight_decay = 0.1F,
                                         .trust = 0.7F,
                                         .warmup_steps = 3,
                                         .compressor = fifth},
                 rounding);
  follows_oracle(CompAms<>{.learning_rate = 3e-3F, .weight_decay = 0.1F}, rounding, four);
  follows_oracle(Lion<Sign, Residual, AllGather>{.learning_rate = 0.01F, .weight_decay = 0.1F}, rounding);
  follows_oracle(Nadam<ScaledSign<MeanAbs>, AllGather>{.learning_rate = 0.03F, .weight_decay = 0.1F},
                 rounding);
  follows_oracle(Adagrad<TopK<>, Residual, AllGather>{.learning_rate = 0.1F, .compressor = fifth}, rounding);
  follows_oracle(
      RmsProp<RandomK, AllGather>{.learning_rate = 0.01F, .compressor = {.selection = {.ratio = 0.25}}},
      rounding);
  follows_oracle(
      Averaging<NesterovAverage, AmsgradVariance, TopK<>, Ef21>{.learning_rate = 0.01F, .compressor = fifth},
      adding_up);
}

TEST_CASE("where nothing is lost CompAMS is AMSGrad, to the bit") {
  const CompAms<TopK<>> compressed{.weight_decay = 0.1F, .compressor = {.selection = {.ratio = 1}}};
  const History ours = train(compressed, few_layers(), four);
  const History exact = train(Amsgrad<>{.weight_decay = 0.1F, .bias_correction = false}, few_layers(), four);
  for (std::uint64_t step = 1; step <= four.steps; ++step)
    for (std::size_t rank = 0; rank < at(four.ranks); ++rank)
      CHECK(ours[step][rank].parameters == exact[step][rank].parameters);
  CHECK(distance(few_layers(), ours.back()[0].parameters, start(few_layers())) > 0.01);
}

TEST_CASE("methods whose messages are gradients follow the oracle") {
  follows_oracle(QuantizedSgd<AllGather>{.learning_rate = 0.02F, .weight_decay = 0.1F}, rounding, clipped);
  follows_oracle(
      Averaging<Qsgd<4, MaxAbs>, Residual, AllGather>{
          .learning_rate = 0.1F, .error_feedback = {.decay = 0.5F, .follows_rate = true}},
      rounding);
  // Where nothing moves, what is sent enters neither momentum nor variance.
  follows_oracle(
      Averaging<HeavyBall, AdamVariance, ScaledSign<MeanAbs>, AllGather>{
          .learning_rate = 0.01F, .error_feedback = {.follows_rate = true}},
      rounding, paused);
  follows_oracle(Ef21Sgd<>{.learning_rate = 0.1F, .compressor = fifth}, adding_up);
  follows_oracle(
      Ef21Sgd<Qsgd<4>, HeavyBall>{
          .learning_rate = 0.02F, .warmup_steps = 3, .error_feedback = {.rate = 0.25F}},
      adding_up);
}

TEST_CASE("momentum before compression follows the oracle") {
  follows_oracle(DeepGradientCompression<>{.learning_rate = 0.02F,
                                           .weight_decay = 0.1F,
                                           .compressor = {.selection = {.ratio = 0.1, .warmup_steps = 9}}},
                 rounding);
  follows_oracle(DeepGradientCompression<>{.learning_rate = 0.02F,
                                           .momentum_correction = {.nesterov = true},
                                           .compressor = {.selection = {.ratio = 0.1}},
                                           .error_feedback = {.follows_rate = true}},
                 rounding, paused);
  follows_oracle(
      Averaging<FactorMasking, AdamVariance, TopK<>, AllGather>{.learning_rate = 0.02F, .compressor = fifth},
      rounding);
  follows_oracle(
      ErrorFeedbackSgd<LocalMomentumBefore, AllGather>{
          .learning_rate = 0.02F, .weight_decay = 0.1F, .warmup_steps = 4},
      rounding, clipped);
  follows_oracle(ErrorFeedbackSgd<LocalMomentumBefore, AllGather>{.learning_rate = 0.02F,
                                                                  .momentum_correction = {.nesterov = false},
                                                                  .error_feedback = {.follows_rate = true}},
                 rounding, paused);
  follows_oracle(Ef21Sgd<LocalMomentumBefore>{.learning_rate = 0.02F, .compressor = fifth}, adding_up);
  for (const Training& training : {Training{}, four})
    follows_oracle(SignSgd<AllGather>{.learning_rate = 0.02F, .weight_decay = 0.1F}, rounding, training);
  follows_oracle(Averaging<LocalAverage, AdagradSum, Sign, AllGather>{.learning_rate = 0.1F}, rounding);
  follows_oracle(
      Averaging<LocalMomentumBefore, LayerWise<AdamVariance>, TopK<>, AllGather>{.learning_rate = 0.02F,
                                                                                 .compressor = fifth},
      rounding);
}

TEST_CASE("compositions with low rank follow the oracle of PowerSGD") {
  // What is left of the last round, the error and the factors, enters the next one, and once gradients are mostly noise it
  // grows there: a change of the first factors by 1e-7 moves the oracle's own buffers by 2e-6 in 25 steps, and by 5e-4 in 30.
  // 1.1e-5 is measured, of Lamb's buffers, and 1e-6 of parameters.
  constexpr double carried_on = 2e-5;
  const Training shorter{.steps = 25}, both{.steps = 25, .clip_norm = 6};
  follows_oracle(PowerSgd<2>{.learning_rate = 0.02F, .weight_decay = 0.1F, .warmup_steps = 2}, carried_on,
                 both);
  follows_oracle(Adam<LowRank<2>>{.learning_rate = 0.03F, .weight_decay = 0.1F}, carried_on, shorter);
  follows_oracle(Lamb<LowRank<2>>{.learning_rate = 0.03F, .weight_decay = 0.1F}, carried_on, shorter);
  follows_oracle(Averaging<LowRank<2>, LocalAverage, AdagradSum>{.learning_rate = 0.1F}, carried_on, shorter);
}
