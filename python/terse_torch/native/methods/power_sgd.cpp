// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/power_sgd.hpp"
#include "../method.hpp"

namespace terse_torch {
namespace {

template <int Rank>
terse::PowerSgd<Rank> recipe(const Settings& settings) {
  return {.learning_rate = settings.number("lr"),
          .weight_decay = settings.number("weight_decay"),
          .momentum_correction = {.momentum = settings.number("momentum")}};
}

const bool rank_1 = add<recipe<1>>("PowerSgd of rank 1");
const bool rank_2 = add<recipe<2>>("PowerSgd of rank 2");
const bool rank_4 = add<recipe<4>>("PowerSgd of rank 4");

}  // namespace
}  // namespace terse_torch
