// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>

#include "functors.hpp"
#include "terse/device/cuda.cuh"

// Times on a CUDA device.

namespace terse::bench::gpu {

using terse::detail::check_cuda;

inline constexpr index_t mebi = index_t{1} << 20;

struct Event {
  cudaEvent_t event{};
  Event() { check_cuda(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

/// Reads all of it and keeps nothing, so that the cache holds this and has nothing left to write back.
static __global__ void read_through(const float4* from, index_t count, float* never) {
  float sum = 0;
  for (index_t i = blockIdx.x * index_t{blockDim.x} + threadIdx.x; i < count;
       i += index_t{gridDim.x} * blockDim.x) {
    const float4 four = from[i];
    sum += four.x + four.y + four.z + four.w;
  }
  if (sum != 0) *never = sum;  // they are zeros
}

class Stopwatch {
 public:
  explicit Stopwatch(const cudaDeviceProp& device)
      : blocks_(4 * device.multiProcessorCount),
        zeros_(std::max<index_t>(64 * mebi, index_t{device.l2CacheSize} / 2)) {}

  /// Milliseconds of one call, with nothing of its data in the cache. While the device reads zeros, the host gets
  /// ahead of it, so that the time is the device's and not that of enqueueing.
  double time(const std::function<void()>& work) {
    read_through<<<static_cast<unsigned>(blocks_), 256>>>(reinterpret_cast<const float4*>(zeros_.data()),
                                                          zeros_.size() / 4, zeros_.data());
    check_cuda(cudaGetLastError(), "launching a kernel");
    check_cuda(cudaEventRecord(begin_.event), "cudaEventRecord");
    work();
    check_cuda(cudaEventRecord(end_.event), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_.event), "what was launched");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_.event, end_.event), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  }

 private:
  int blocks_;
  Floats<executor::cuda> zeros_;
  Event begin_, end_;
};

}  // namespace terse::bench::gpu
