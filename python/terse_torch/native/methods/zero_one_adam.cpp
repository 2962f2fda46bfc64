// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/zero_one_adam.hpp"
#include "../method.hpp"

namespace terse_torch {
namespace {

const bool zero_one_adam = add<[](const Settings& settings) {
  return terse::ZeroOneAdam<>{.learning_rate = settings.number("lr"),
                              .beta1 = settings.number("beta1"),
                              .beta2 = settings.number("beta2"),
                              .epsilon = settings.number("eps"),
                              .weight_decay = settings.number("weight_decay"),
                              .variance_freeze_step = settings.count("freeze_step"),
                              .variance_updates = settings.count("variance_updates"),
                              .local_interval_steps = settings.count("local_interval_steps"),
                              .most_local_steps = settings.count("most_local_steps")};
}>("ZeroOneAdam");

}  // namespace
}  // namespace terse_torch
