// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <string>

#include "terse/interop/libtorch.hpp"
#if __cplusplus >= 202002L
#include "terse/core/view.hpp"
#endif

// Needs a LibTorch with CUDA and CUDA's own headers. Not for nvcc, which takes minutes for LibTorch's headers where it
// takes them at all: keep LibTorch in a unit of the host's compiler and the optimizer in one of nvcc's. The views appear
// from C++20 on.

namespace terse::interop {

/// LibTorch's current stream of this thread on the module's device: the one that its backward passes are in the order
/// of, and a step on its arenas must be, too. Throws usage_error if the module lies on the CPU, or on a device that
/// isn't this thread's current one, on which `executor::cuda` runs.
///
/// What the optimizer's unit, which is nvcc's, makes of this and of the arenas' addresses:
///
///     terse::Optimizer optimizer{recipe, transport, layout, options, terse::executor::cuda{stream}};
///     optimizer.step({parameters, layout.size()}, {gradients, layout.size()});
///
/// The optimizer keeps the stream, so the same one must be current at every backward pass.
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
/// The arenas of a module on a CUDA device, for an optimizer that runs there. Throw like `current_stream`.
inline view<float, memory::device> device_parameters(FlatModule& module) {
  current_stream(module);
  return {module.parameters(), module.size()};
}
/// The module's gradients in the device's memory, for a step on the module's current stream.
inline view<float, memory::device> device_gradients(FlatModule& module) {
  current_stream(module);
  return {module.gradients(), module.size()};
}
#endif

}  // namespace terse::interop
