// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "terse/executor/device_memory.hpp"
#include "terse/executor/emulated.hpp"

namespace terse::test {

/// Runs the device's kernels in the order of a stream of the stand-in's, thread by thread as `emulated` does.
struct Queued {
  cudaStream_t stream = nullptr;

  using memory = terse::memory::device;
  using staging = terse::memory::pinned;
  static constexpr bool grid = true;

  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    using Job = std::function<void()>;
    const auto job = new Job([=] {
      const terse::memory::emulated::Open open;
      thread_local const auto threads = std::make_unique<detail::EmulatedThreads>();
      for (index_t index = 0; index < blocks; ++index) threads->run(kernel, index);
    });
    const auto run = [](void* data) { (*std::unique_ptr<Job>(static_cast<Job*>(data)))(); };
    detail::check_cuda(cudaLaunchHostFunc(stream, run, job), "cudaLaunchHostFunc");
  }
  void move(void* to, const void* from, std::size_t bytes) const {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void bring(void* to, const void* from, std::size_t bytes) const {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void send(void* to, const void* from, std::size_t bytes) const {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void synchronize() const { detail::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const {
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  }
};

}  // namespace terse::test
