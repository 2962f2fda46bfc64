// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Local and layer-wise methods on a GPU against the host's, bit for bit; its ranks are threads that share it.

#define TERSE_TEST_DEVICE OnThisThread
#define TERSE_TEST_RECORDING Graph

#include "optimizer/device_lamb.inc"
#include "optimizer/device_local.inc"
#include "terse/optimizer/zero_one_adam.hpp"

TEST_CASE("0/1 Adam through both stages") {
  compare(ZeroOneAdam<>{.weight_decay = 0.01F,
                        .variance_freeze_step = 4,
                        .variance_updates = 1,
                        .local_interval_steps = 2,
                        .most_local_steps = 4},
          some_layers(), 3, 14);
}
