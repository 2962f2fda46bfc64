// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/power_sgd.hpp"

namespace train {

template <>
Made make<struct PowerSgd>(const Order<OnHost>& order) {
  return made(order, terse::PowerSgd<2>{.learning_rate = order.rate(),
                                        .weight_decay = order.weight_decay(),
                                        .momentum_correction = {.momentum = order.momentum()}});
}

}  // namespace train
