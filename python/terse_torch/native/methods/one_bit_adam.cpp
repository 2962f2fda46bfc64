// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/one_bit_adam.hpp"
#include "../method.hpp"
#include "terse/topology/ring.hpp"

namespace terse_torch {
namespace {

template <class T>
terse::OneBitAdam<T> recipe(const Settings& settings) {
  return {.learning_rate = settings.number("lr"),
          .beta1 = settings.number("beta1"),
          .beta2 = settings.number("beta2"),
          .epsilon = settings.number("eps"),
          .weight_decay = settings.number("weight_decay"),
          .bias_correction = settings.flag("bias_correction"),
          .preconditioner = {.freeze = terse::AtStep{settings.count("freeze_step")}}};
}

const bool one_bit_adam = add<recipe<terse::ScatterGather>>("OneBitAdam");
const bool one_bit_adam_over_ring = add<recipe<terse::Ring>>("OneBitAdam over ring");

}  // namespace
}  // namespace terse_torch
