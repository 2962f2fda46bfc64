// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/optimizer/options.hpp"

// For compilers of the host. It needs no CUDA header; these and the kernels are in gpu_optimizer.cuh.

struct CUstream_st;  // CUDA's cudaStream_t is a pointer to it

namespace terse {

class Nccl;
namespace executor {
struct cuda;
}

namespace interop {

/// An Optimizer on a GPU for a unit that nvcc doesn't compile, such as one of LibTorch. Communication overlaps with the
/// program's work, see executor::overlapped. A .cu file of the program compiles each recipe:
///
///     #include "terse/interop/gpu_optimizer.cuh"
///     #include "terse/optimizer/one_bit_adam.hpp"
///     template class terse::interop::GpuOptimizer<terse::OneBitAdam<>>;
///
/// Without these lines the linker reports undefined members of GpuOptimizer. Members do the same as those of Optimizer,
/// and throw the same errors. For other members, such as `mask` and checkpoints, write functions in the .cu file;
/// `optimizer_of` returns the Optimizer there.
template <class R, class T = Nccl, class E = executor::cuda>
class GpuOptimizer {
 public:
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;

 public:
  using memory = typename T::memory;
  R& recipe;  ///< the hyper-parameters, which may change between steps

  /// Constructs on all ranks. `program` returns the stream on which the program computes at the time of each call, in the
  /// calling thread. The optimizer works on the transport's stream.
  GpuOptimizer(const R& recipe_, T& transport, const Layout& layout, const Options& options,
               std::function<CUstream_st*()> program);
  GpuOptimizer(const GpuOptimizer&) = delete;
  GpuOptimizer& operator=(const GpuOptimizer&) = delete;
  ~GpuOptimizer();

  void begin(view<float, memory> parameters, view<const float, memory> gradients, float gradient_scale = 1);
  void ready(index_t segment);
  StepResult step(view<float, memory> parameters, view<const float, memory> gradients,
                  float gradient_scale = 1);

  R& group(int id);
  void learning_rate(float rate);
  float learning_rate() const;
  void rescale(std::string_view segment, float learning_rate_scale, float weight_decay);

  bool begun() const;
  std::uint64_t steps() const;
  bool full_precision() const;
  int rank() const;
  int size() const;
  /// Returns the optimizer's own channel, for collective work between steps, and orders that work after the program's previous
  /// work.
  T& channel();

  /// Returns the part that gpu_optimizer.cuh defines.
  Impl& impl() { return *impl_; }
};

}  // namespace interop
}  // namespace terse
