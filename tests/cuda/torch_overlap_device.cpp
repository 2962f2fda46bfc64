// SPDX-License-Identifier: Apache-2.0
// What a program's .cu file is on a GPU, with the stand-in for CUDA: the recipes of torch_overlap.cpp.
#include "queued.hpp"
#include "terse/interop/gpu_optimizer.cuh"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

template class terse::interop::GpuOptimizer<terse::Adam<>, terse::Nccl, terse::test::Queued>;
template class terse::interop::GpuOptimizer<terse::OneBitAdam<>, terse::Nccl, terse::test::Queued>;
