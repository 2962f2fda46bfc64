// SPDX-License-Identifier: Apache-2.0
#include "dense_optimizers.hpp"

namespace train {

template <>
Made make<struct Adam>(const Order<OnHost>& order) {
  return make_adam(order);
}
template <>
Made make<struct MomentumSgd>(const Order<OnHost>& order) {
  return make_momentum_sgd(order);
}

}  // namespace train
