// SPDX-License-Identifier: Apache-2.0
#include "cuda_place.cuh"
#include "one_bit_adam.hpp"
#include "terse/topology/all_gather.hpp"

namespace train {

template <>
Made make<OneBitAdamOverAllGather>(const Order<OnCuda>& order) {
  return make_one_bit_adam_over<terse::AllGather>(order);
}

}  // namespace train
