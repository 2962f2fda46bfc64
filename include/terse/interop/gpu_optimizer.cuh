// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The members of GpuOptimizer, for the .cu file that compiles them, and `optimizer_of`; see docs/libtorch.md.

#include "terse/device.hpp"
#ifdef __CUDACC__
#include "terse/device/cuda.cuh"
#endif
#include "terse/device/overlapped.hpp"
#include "terse/interop/gpu_optimizer.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/nccl.hpp"

namespace terse::interop {

template <class R, class T, class E>
struct GpuOptimizer<R, T, E>::Impl {
  executor::overlapped<E> executor;
  Optimizer<R, T, executor::overlapped<E>> optimizer;

  Impl(const R& recipe, T& transport, const Layout& layout, const Options& options,
       std::function<CUstream_st*()> program)
      : executor(E{transport.stream()}, std::move(program)),
        optimizer(recipe, transport, layout, options, executor) {}
};

/// Returns the underlying Optimizer, in a .cu file.
template <class R, class T, class E>
Optimizer<R, T, executor::overlapped<E>>& optimizer_of(GpuOptimizer<R, T, E>& optimizer) {
  return optimizer.impl().optimizer;
}

template <class R, class T, class E>
GpuOptimizer<R, T, E>::GpuOptimizer(const R& recipe_, T& transport, const Layout& layout,
                                    const Options& options, std::function<CUstream_st*()> program)
    : impl_(std::make_unique<Impl>(recipe_, transport, layout, options, std::move(program))),
      recipe(impl_->optimizer.recipe) {}

template <class R, class T, class E>
GpuOptimizer<R, T, E>::~GpuOptimizer() = default;

template <class R, class T, class E>
void GpuOptimizer<R, T, E>::begin(view<float, memory> parameters, view<const float, memory> gradients,
                                  float gradient_scale) {
  impl_->optimizer.begin(parameters, gradients, gradient_scale);
}
template <class R, class T, class E>
void GpuOptimizer<R, T, E>::ready(index_t segment) {
  impl_->optimizer.ready(segment);
}
template <class R, class T, class E>
StepResult GpuOptimizer<R, T, E>::step(view<float, memory> parameters, view<const float, memory> gradients,
                                       float gradient_scale) {
  return impl_->optimizer.step(parameters, gradients, gradient_scale);
}

template <class R, class T, class E>
R& GpuOptimizer<R, T, E>::group(int id) {
  return impl_->optimizer.group(id);
}
template <class R, class T, class E>
void GpuOptimizer<R, T, E>::learning_rate(float rate) {
  impl_->optimizer.learning_rate(rate);
}
template <class R, class T, class E>
float GpuOptimizer<R, T, E>::learning_rate() const {
  return impl_->optimizer.learning_rate();
}
template <class R, class T, class E>
void GpuOptimizer<R, T, E>::rescale(std::string_view segment, float learning_rate_scale, float weight_decay) {
  impl_->optimizer.rescale(segment, learning_rate_scale, weight_decay);
}

template <class R, class T, class E>
bool GpuOptimizer<R, T, E>::begun() const {
  return impl_->optimizer.begun();
}
template <class R, class T, class E>
std::uint64_t GpuOptimizer<R, T, E>::steps() const {
  return impl_->optimizer.steps();
}
template <class R, class T, class E>
bool GpuOptimizer<R, T, E>::full_precision() const {
  return impl_->optimizer.full_precision();
}
template <class R, class T, class E>
int GpuOptimizer<R, T, E>::rank() const {
  return impl_->optimizer.rank();
}
template <class R, class T, class E>
int GpuOptimizer<R, T, E>::size() const {
  return impl_->optimizer.size();
}
template <class R, class T, class E>
T& GpuOptimizer<R, T, E>::channel() {
  impl_->executor.follow();
  return impl_->optimizer.channel();
}

}  // namespace terse::interop
