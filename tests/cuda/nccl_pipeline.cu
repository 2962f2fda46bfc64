// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "terse/cuda.cuh"

// Pipelines over NCCL itself, a stage for each GPU of the machine: with one GPU there is no message.

#define TERSE_TEST_DEVICE terse::executor::cuda

#include "cuda/nccl_pipeline.inc"
