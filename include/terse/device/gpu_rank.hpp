// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/device/memory.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/nccl.hpp"
#include "terse/transport/threads.hpp"

namespace terse {

/// A rank with its own GPU: device, stream, NCCL transport and executor E, made in the only order that works.
/// terse/gpus.cuh names it cuda::Rank.
template <class E>
class GpuRank {
 public:
  /// Makes a GPU current in this thread and connects to the other ranks over NCCL. The GPU's number is the rank's
  /// number among the ranks of its machine, modulo the number of GPUs that the process sees. Collective over `boot`, a
  /// transport of host memory that is not used afterwards. Throws on all ranks the exceptions of Nccl::create:
  /// peer_error if a rank has no GPU, usage_error if two ranks have the same one.
  template <Transport Boot>
  requires std::same_as<typename Boot::memory, memory::host>
  explicit GpuRank(Boot& boot, Deadline deadline = std::chrono::seconds(60))
      : device_(choose_device(boot)), transport_(Nccl::create(boot, stream_.handle(), deadline)) {}

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  int device() const { return device_; }
  cudaStream_t stream() const { return stream_.handle(); }
  Nccl& transport() { return transport_; }
  const E& executor() const { return executor_; }

 private:
  template <class Boot>
  static int choose_device(Boot& boot) {
    std::array<char, 65> host{};
    ::gethostname(host.data(), host.size() - 1);
    const std::vector<std::array<char, 65>> hosts = all_gather(boot, host);
    const auto before = std::count(hosts.begin(), hosts.begin() + boot.rank(), host);
    int gpus = 0;
    // Without a GPU, Nccl::create reports the error on all ranks.
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return -1;
    const int device = static_cast<int>(before) % gpus;
    detail::check_cuda(cudaSetDevice(device), "cudaSetDevice");
    return device;
  }

  int device_;
  detail::OwnStream stream_;
  Nccl transport_;
  E executor_{stream_.handle()};
};

namespace detail {

/// Runs body(rank) in a thread for each GPU of this machine. Throws the exceptions of ThreadGroup::run, and usage_error
/// if there is no GPU.
template <class Rank, class Body>
void on_all_gpus(const Body& body, Deadline deadline) {
  int gpus = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&gpus); result != cudaSuccess || gpus == 0)
    throw usage_error(std::string("this process sees no GPU") +
                      (result != cudaSuccess ? std::string(": ") + cudaGetErrorString(result) : ""));
  ThreadGroup(gpus, deadline).run([&](Threads& boot) {
    Rank rank(boot, deadline);
    body(rank);
  });
}

}  // namespace detail
}  // namespace terse
