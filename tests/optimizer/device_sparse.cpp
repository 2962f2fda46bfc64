// SPDX-License-Identifier: Apache-2.0
#include "terse/executor/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#include "device_sparse.inc"
