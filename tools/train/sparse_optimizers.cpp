// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "marked_layout.hpp"
#include "terse/optimizer/deep_gradient_compression.hpp"
#include "terse/optimizer/demo.hpp"
#include "terse/optimizer/distributed_lion.hpp"
#include "terse/optimizer/e_control.hpp"
#include "terse/optimizer/ef21_sgd.hpp"

namespace train {
template <>
Made make<struct DeepGradientCompression>(const Order<OnHost>& order) {
  return made(order,
              terse::DeepGradientCompression<>{
                  .learning_rate = order.rate(),
                  .weight_decay = order.weight_decay(),
                  .momentum_correction = {.momentum = order.momentum()},
                  .compressor = {.selection = {.ratio = ratio_of(order.options, order.method),
                                               .warmup_steps = order.stages.ratio_warmup}}},
              matrices_alone(order.layout));
}

template <>
Made make<struct Ef21Sgd>(const Order<OnHost>& order) {
  // Momentum before the differences: without it they are mostly noise of single batches.
  return made(order,
              terse::Ef21Sgd<terse::TopK<>, terse::LocalMomentumBefore>{
                  .learning_rate = order.rate(),
                  .weight_decay = order.weight_decay(),
                  .momentum_correction = {.momentum = order.momentum(), .nesterov = false},
                  .compressor = {.selection = {.ratio = ratio_of(order.options, order.method)}}},
              matrices_alone(order.layout));
}

template <>
Made make<struct Ef21Sgdm>(const Order<OnHost>& order) {
  return made(
      order,
      terse::Ef21Sgdm<>{.learning_rate = order.rate(),
                        .weight_decay = order.weight_decay(),
                        .compressor = {.selection = {.ratio = ratio_of(order.options, order.method)}}},
      matrices_alone(order.layout));
}

template <>
Made make<struct EControl>(const Order<OnHost>& order) {
  return made(
      order,
      terse::EControl<>{.learning_rate = order.rate(),
                        .weight_decay = order.weight_decay(),
                        .compressor = {.selection = {.ratio = ratio_of(order.options, order.method)}}},
      matrices_alone(order.layout));
}

template <>
Made make<struct DeMo>(const Order<OnHost>& order) {
  return made(
      order,
      terse::DeMo<>{.learning_rate = order.rate(),
                    .weight_decay = order.weight_decay(),
                    .compressor = {.inner = {.selection = {.ratio = ratio_of(order.options, order.method)}}},
                    .error_feedback = {.follows_rate = true}},
      matrices_alone(order.layout));
}

template <>
Made make<struct DistributedLion>(const Order<OnHost>& order) {
  return made(order,
              terse::DistributedLion<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()},
              matrices_alone(order.layout));
}

}  // namespace train
