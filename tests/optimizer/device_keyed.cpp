// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "optimizer/device_keyed.inc"
