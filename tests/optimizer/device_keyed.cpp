// SPDX-License-Identifier: Apache-2.0
#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "optimizer/device_keyed.inc"

#include "optimizer/launches.hpp"
#include "terse/graph/named.hpp"

TEST_CASE("a keyed step takes as many launches and copies whatever the number of neighbours") {
  // docs/cuda.md says so.
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const MoniquaSgd<Moniqua<8>, Mixing<graph::Complete>> recipe{.compressor = {.bound = 4}};
    CHECK(launches_of(recipe, few_layers(), ranks) == 17);
  }
}
