// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/decentlam.hpp"
#include "../method.hpp"

namespace terse_torch {
namespace {

const bool decentlam = add<[](const Settings& settings) {
  terse::DecentLaM<> recipe{.learning_rate = settings.number("lr"),
                            .weight_decay = settings.number("weight_decay")};
  recipe.momentum_correction.momentum = settings.number("momentum");
  return recipe;
}>("DecentLaM");

}  // namespace
}  // namespace terse_torch
