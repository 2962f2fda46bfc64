// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>

#include "terse/interop/data_parallel.hpp"
#include "terse/interop/gpu_optimizer.hpp"
#include "terse/interop/libtorch_cuda.hpp"

// For the host's compiler, with a LibTorch that has CUDA.

namespace terse::interop::detail {

/// DataParallel of a module on a CUDA device, over a transport of device memory such as Nccl. Gradients are sent during
/// the backward pass on the transport's stream, while LibTorch computes on its own. The optimizer is a GpuOptimizer,
/// which a .cu file of the program compiles.
template <class R, class T>
requires std::same_as<typename T::memory, memory::device>
struct StepsOf<R, T> {
  using type = GpuOptimizer<R, T>;
  static type make(const R& recipe, T& transport, const FlatModule& flat, const Options& options) {
    // A hook asks for the stream on which its gradient was accumulated.
    const auto program = [device = (current_stream(flat), flat.device().index())]() -> cudaStream_t {
      return c10::cuda::getCurrentCUDAStream(device).stream();
    };
    return type(recipe, transport, flat.layout(), options, program);
  }
};

}  // namespace terse::interop::detail
