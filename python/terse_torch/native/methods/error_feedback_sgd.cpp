// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "../method.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse_torch {
namespace {

const bool error_feedback_sgd = add<[](const Settings& settings) {
  return terse::ErrorFeedbackSgd<terse::LocalMomentumBefore>{
      .learning_rate = settings.number("lr"),
      .weight_decay = settings.number("weight_decay"),
      .momentum_correction = {.momentum = settings.number("momentum")}};
}>("ErrorFeedbackSgd");

}  // namespace
}  // namespace terse_torch
