// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "terse/executor/cuda.cuh"

#define TERSE_TEST_EXECUTORS terse::executor::cuda

#include "executor/verbs.inc"
