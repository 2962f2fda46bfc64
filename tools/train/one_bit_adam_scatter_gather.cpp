// SPDX-License-Identifier: Apache-2.0
#include "one_bit_adam.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace train {

template <>
Made make<OneBitAdamOverScatterGather>(const Order<OnHost>& order) {
  return make_one_bit_adam_over<terse::ScatterGather>(order);
}
template <>
Made make<struct OneBitAdam>(const Order<OnHost>& order) {
  return make_one_bit_adam(order);
}

}  // namespace train
