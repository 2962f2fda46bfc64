// SPDX-License-Identifier: Apache-2.0
#include "terse/cuda.cuh"

using Device = terse::executor::cuda;

#include "cuda/nccl_processes.inc"
