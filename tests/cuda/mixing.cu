// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Decentralized optimizers on a GPU against the host's, bit for bit; its ranks are threads that share it.

#define TERSE_TEST_DEVICE OnThisThread
#define TERSE_TEST_RECORDING Graph

#include "optimizer/device_keyed.inc"
#include "optimizer/device_mixing.inc"
