// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/one_bit_lamb.hpp"
#include "../method.hpp"

namespace terse_torch {
namespace {

const bool one_bit_lamb = add<[](const Settings& settings) {
  return terse::OneBitLamb<>{.learning_rate = settings.number("lr"),
                             .beta1 = settings.number("beta1"),
                             .beta2 = settings.number("beta2"),
                             .epsilon = settings.number("eps"),
                             .weight_decay = settings.number("weight_decay"),
                             .bias_correction = settings.flag("bias_correction"),
                             .preconditioner = {.freeze = terse::AtStep{settings.count("freeze_step")}}};
}>("OneBitLamb");

}  // namespace
}  // namespace terse_torch
