// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/muon.hpp"
#include "../method.hpp"
#include "terse/optimizer/dion.hpp"

namespace terse_torch {
namespace {

const bool muon = add<[](const Settings& settings) {
  return terse::Muon<>{.learning_rate = settings.number("lr"),
                       .weight_decay = settings.number("weight_decay"),
                       .momentum = settings.number("momentum"),
                       .beta1 = settings.number("beta1"),
                       .beta2 = settings.number("beta2"),
                       .epsilon = settings.number("eps")};
}>("Muon");

const bool dion = add<[](const Settings& settings) {
  return terse::Dion<16>{.learning_rate = settings.number("lr"),
                         .weight_decay = settings.number("weight_decay"),
                         .momentum = settings.number("momentum"),
                         .beta1 = settings.number("beta1"),
                         .beta2 = settings.number("beta2"),
                         .epsilon = settings.number("eps")};
}>("Dion");

}  // namespace
}  // namespace terse_torch
