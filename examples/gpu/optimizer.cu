// SPDX-License-Identifier: Apache-2.0

// The kernels of data_parallel.cpp, for nvcc: a line for each recipe.

#include "terse/interop/gpu_optimizer.cuh"
#include "terse/optimizer/one_bit_adam.hpp"

template class terse::interop::GpuOptimizer<terse::OneBitAdam<>>;
