// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Steps that are replayed from a CUDA graph on a GPU, against those that are taken one by one.

#define TERSE_TEST_DEVICE OnThisThread
#define TERSE_TEST_RECORDING Graph

#include "optimizer/device_replay.inc"
