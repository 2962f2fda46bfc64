// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Sharded on a GPU against the host's, bit for bit; its ranks are threads that share it.

#define TERSE_TEST_DEVICE OnThisThread

#include "optimizer/device_sharded.inc"
