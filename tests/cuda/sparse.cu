// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Selection, and sparse compressors in whole optimizers, on a GPU against the host's, bit for bit; its ranks are threads
// that share it.

#define TERSE_TEST_EXECUTORS terse::executor::cuda
#define TERSE_TEST_DEVICE OnThisThread

#include "executor/select.inc"
#include "optimizer/device_sparse.inc"
