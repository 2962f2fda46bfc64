// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "terse/optimizer/sign_sgd.hpp"

// For the units that make these on a place.

namespace train {

// Momentum behind the signs would be unstable at the rates of the others, see docs/algorithms.
template <class P>
Made make_error_feedback_sgd(const Order<P>& order) {
  return made_anywhere(order, terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs>, terse::NoMomentum>{
                                  .learning_rate = order.rate(),
                                  .weight_decay = order.weight_decay(),
                                  .error_feedback = {.follows_rate = true}});
}

template <class P>
Made make_dist_error_feedback_sgd(const Order<P>& order) {
  return made_anywhere(order,
                       terse::ErrorFeedbackSgd<terse::ScaledSign<terse::MeanAbs>, terse::LocalMomentumBefore>{
                           .learning_rate = order.rate(),
                           .weight_decay = order.weight_decay(),
                           .momentum_correction = {.momentum = order.momentum(), .nesterov = true},
                           .error_feedback = {.follows_rate = true}});
}

template <class P>
Made make_sign_sgd(const Order<P>& order) {
  return made_anywhere(order, terse::SignSgd<>{.learning_rate = order.rate(),
                                               .weight_decay = order.weight_decay(),
                                               .momentum_correction = {.momentum = order.momentum()}});
}

template <class P>
Made make_quantized_sgd(const Order<P>& order) {
  return made_anywhere(order, terse::QuantizedSgd<>{.learning_rate = order.rate(),
                                                    .weight_decay = order.weight_decay(),
                                                    .momentum_correction = {.momentum = order.momentum()}});
}

}  // namespace train
