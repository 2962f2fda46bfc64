// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Local and layer-wise methods on a GPU against the host's, bit for bit; its ranks are threads that share it.

#define TERSE_TEST_DEVICE OnThisThread
#define TERSE_TEST_RECORDING Graph

#include "optimizer/device_lamb.inc"
#include "optimizer/device_local.inc"
