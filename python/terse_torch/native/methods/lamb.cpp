// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/lamb.hpp"
#include "../method.hpp"

namespace terse_torch {
namespace {

const bool lamb = add<[](const Settings& settings) {
  return terse::Lamb<>{.learning_rate = settings.number("lr"),
                       .beta1 = settings.number("beta1"),
                       .beta2 = settings.number("beta2"),
                       .epsilon = settings.number("eps"),
                       .weight_decay = settings.number("weight_decay")};
}>("Lamb");

}  // namespace
}  // namespace terse_torch
