// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// For the units that make these on a place.

namespace train {

template <class P>
Made make_adam(const Order<P>& order) {
  return made_anywhere(order,
                       terse::Adam<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()});
}

template <class P>
Made make_momentum_sgd(const Order<P>& order) {
  return made_anywhere(order, terse::MomentumSgd<>{.learning_rate = order.rate(),
                                                   .weight_decay = order.weight_decay(),
                                                   .momentum_correction = {.momentum = order.momentum()}});
}

}  // namespace train
