// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/device/memory.hpp"
#include "terse/device/overlapped.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/nccl.hpp"
#include "terse/transport/threads.hpp"

namespace terse {

/// A rank with its own GPU: device, stream and NCCL transport, made in the only order that works. It is for host
/// compilers; nvcc's units use cuda::Rank of terse/gpus.cuh.
class GpuRank {
 public:
  /// Makes a GPU current in this thread and connects to the other ranks over NCCL. The GPU's number is the rank's
  /// number among the ranks of its machine, modulo the number of GPUs that the process sees. Collective over `boot`, a
  /// transport of host memory that is only needed for this call. Throws on all ranks the exceptions of Nccl::create:
  /// peer_error if a rank has no GPU, usage_error if two ranks have the same one.
  template <class Boot>
  requires(!std::derived_from<Boot, GpuRank> && Transport<Boot> &&
           std::same_as<typename Boot::memory, memory::host>) explicit GpuRank(Boot& boot,
                                                                               Deadline deadline =
                                                                                   std::chrono::seconds(60))
      : device_(choose_device(boot)), stream_(), transport_(Nccl::create(boot, stream_.handle(), deadline)) {}

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  int device() const { return device_; }
  cudaStream_t stream() const { return stream_.handle(); }
  Nccl& transport() { return transport_; }

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
};

namespace detail {

/// A GpuRank with an executor E on its stream. cuda::Rank is one.
template <class E>
class GpuRankWith : public GpuRank {
 public:
  using GpuRank::GpuRank;

  const E& executor() const { return executor_; }
  /// Returns an executor for an optimizer whose communication overlaps with the program's work on `compute`, another
  /// stream of this device: see executor::overlapped.
  executor::overlapped<E> overlapped(cudaStream_t compute) const { return {executor_, compute}; }

 private:
  E executor_{stream()};
};

}  // namespace detail

/// Runs `body(rank)`, with a `Rank&`, in a thread for each GPU of this machine, without MPI. No wait lasts longer than
/// `deadline`. Throws the exceptions of ThreadGroup::run, and usage_error if the process sees no GPU.
template <class Rank = GpuRank, class Body>
void on_all_gpus(const Body& body, Deadline deadline = std::chrono::seconds(60)) {
  int gpus = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&gpus); result != cudaSuccess || gpus == 0)
    throw usage_error(std::string("this process sees no GPU") +
                      (result != cudaSuccess ? std::string(": ") + cudaGetErrorString(result) : ""));
  ThreadGroup(gpus, deadline).run([&](Threads& boot) {
    Rank rank(boot, deadline);
    body(rank);
  });
}

}  // namespace terse
