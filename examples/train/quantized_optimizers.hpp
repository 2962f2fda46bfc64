// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

// The body of make_quantized_optimizer, for the units that instantiate it.

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_quantized_optimizer(Optimizer kind, const Options& options, P& place,
                                                       const terse::Layout& layout) {
  // Momentum behind the signs would be unstable at the rates of the others, see docs/algorithms.
  using ErrorFeedbackSgd = terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs>, terse::NoMomentum>;
  using DistErrorFeedbackSgd =
      terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs>, terse::LocalMomentumBefore>;
  const auto make = [&]<class Recipe>(const Recipe& recipe) -> std::unique_ptr<AnyOptimizer> {
    return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
  };
  const auto rate = static_cast<float>(rate_of(options, kind).rate);
  const auto weight_decay = static_cast<float>(options.weight_decay);
  const auto momentum = static_cast<float>(options.momentum);
  switch (kind) {
    case Optimizer::dist_error_feedback_sgd:
      return make(DistErrorFeedbackSgd{.learning_rate = rate,
                                       .weight_decay = weight_decay,
                                       .momentum_correction = {.momentum = momentum, .nesterov = true},
                                       .error_feedback = {.follows_rate = true}});
    case Optimizer::sign_sgd:
      return make(terse::SignSgd<>{.learning_rate = rate,
                                   .weight_decay = weight_decay,
                                   .momentum_correction = {.momentum = momentum}});
    case Optimizer::quantized_sgd:
      return make(terse::QuantizedSgd<>{.learning_rate = rate,
                                        .weight_decay = weight_decay,
                                        .momentum_correction = {.momentum = momentum}});
    default:
      return make(ErrorFeedbackSgd{
          .learning_rate = rate, .weight_decay = weight_decay, .error_feedback = {.follows_rate = true}});
  }
}

}  // namespace train
