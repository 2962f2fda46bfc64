// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "terse/cuda.cuh"

// Whole optimizers over NCCL itself, a thread for each GPU of the machine: with one GPU there is no message.

#define TERSE_TEST_DEVICE terse::executor::cuda
constexpr bool adds_in_order = false;

#include "cuda/nccl_optimizer.inc"
