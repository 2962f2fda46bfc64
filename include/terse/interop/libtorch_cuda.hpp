// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <string>

#include "terse/interop/libtorch.hpp"
#if __cplusplus >= 202002L
#include "terse/core/view.hpp"
#endif

// Requires a LibTorch with CUDA, and CUDA's own headers. Not for nvcc, which takes minutes to compile LibTorch's
// headers, if it can. Keep LibTorch in a unit of the host's compiler and the optimizer in one of nvcc's. The views
// exist only from C++20 on.

namespace terse::interop {

/// Returns LibTorch's current stream of this thread on the module's device. Its backward passes are in the order of
/// this stream, and a step on its arenas must be so, too. Throws usage_error if the module is on the CPU, or on a
/// device that isn't this thread's current one, where `executor::cuda` runs.
///
/// The optimizer's unit, compiled by nvcc, uses this stream and the arenas' addresses:
///
///     terse::Optimizer optimizer{recipe, transport, layout, options, terse::executor::cuda{stream}};
///     optimizer.step({parameters, layout.size()}, {gradients, layout.size()});
///
/// The optimizer keeps the stream, so this stream must be current at every backward pass.
inline cudaStream_t current_stream(const FlatModule& module) {
  const torch::Device device = module.device();
  if (!device.is_cuda())
    throw usage_error("the module lies on " + device.str() +
                      ", which has no CUDA stream; move it before it is flat");
  if (const auto current = c10::cuda::current_device(); device.index() != current)
    throw usage_error("the module lies on " + device.str() + ", but this thread's current device is cuda:" +
                      std::to_string(static_cast<int>(current)));
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

#if __cplusplus >= 202002L
/// Returns the module's parameters in the device's memory, for an optimizer that runs there. Throws like
/// `current_stream`.
inline view<float, memory::device> device_parameters(FlatModule& module) {
  current_stream(module);
  return {module.parameters(), module.size()};
}
/// Returns the module's gradients in the device's memory, for a step on the module's current stream.
inline view<float, memory::device> device_gradients(FlatModule& module) {
  current_stream(module);
  return {module.gradients(), module.size()};
}
#endif

}  // namespace terse::interop
