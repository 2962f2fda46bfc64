// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "terse/device/emulated.hpp"
#include "terse/device/memory.hpp"

namespace terse::test {

/// Runs the device's kernels in the order of a stream of the stand-in's, thread by thread as `emulated` does.
struct Queued {
  cudaStream_t stream = nullptr;

  using memory = terse::memory::device;
  using staging = terse::memory::pinned;
  static constexpr bool grid = true;

  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    queue(detail::AnyKernel::of(kernel), blocks);
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
  struct Job {
    detail::AnyKernel kernel;
    std::vector<std::byte> kept;
    index_t blocks;
  };
  void queue(const detail::AnyKernel& kernel, index_t blocks) const {
    const auto bytes = static_cast<const std::byte*>(kernel.kernel);
    const auto run = [](void* data) {
      const std::unique_ptr<Job> job(static_cast<Job*>(data));
      job->kernel.kernel = job->kept.data();
      const terse::memory::emulated::Open open;
      thread_local const auto threads = std::make_unique<detail::EmulatedThreads>();
      for (index_t index = 0; index < job->blocks; ++index) threads->run(job->kernel, index);
    };
    const auto job = new Job{kernel, {bytes, bytes + kernel.bytes}, blocks};
    detail::check_cuda(cudaLaunchHostFunc(stream, run, job), "cudaLaunchHostFunc");
  }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const {
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  }
};

}  // namespace terse::test
