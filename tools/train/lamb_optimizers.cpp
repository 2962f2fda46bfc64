// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/lamb.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"

namespace train {

template <>
Made make<struct Lamb>(const Order<OnHost>& order) {
  return made(order, terse::Lamb<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()});
}

template <>
Made make<struct OneBitLamb>(const Order<OnHost>& order) {
  return made(order, terse::OneBitLamb<>{
                         .learning_rate = order.rate(),
                         .weight_decay = order.weight_decay(),
                         .bias_correction = order.options.bias_correction == BiasCorrection::first_stage,
                         .preconditioner = {terse::AtStep{order.stages.freeze},
                                            static_cast<float>(order.options.update_clip)}});
}

}  // namespace train
