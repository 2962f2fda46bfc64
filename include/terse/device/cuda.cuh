// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <vector>

#include "terse/device/memory.hpp"
#include "terse/device/verbs/pack.hpp"
#include "terse/device/verbs/reduce.hpp"
#include "terse/device/verbs/select.hpp"
#include "terse/device/verbs/sparse.hpp"

namespace terse {

namespace detail {

/// A kernel's view of its block on a device.
struct CudaBlock {
  TERSE_HD index_t index() const {
#ifdef __CUDA_ARCH__
    return blockIdx.x;
#else
    return 0;
#endif
  }
  TERSE_HD int thread() const {
#ifdef __CUDA_ARCH__
    return static_cast<int>(threadIdx.x);
#else
    return 0;
#endif
  }
  TERSE_HD void sync() const {
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
  }
  TERSE_HD std::uint32_t ballot([[maybe_unused]] bool bit) const {
#ifdef __CUDA_ARCH__
    return __ballot_sync(0xFFFFFFFFU, bit);
#else
    return 0;
#endif
  }
  TERSE_HD std::uint32_t shuffle(std::uint32_t word, [[maybe_unused]] int from) const {
#ifdef __CUDA_ARCH__
    return __shfl_sync(0xFFFFFFFFU, word, from);
#else
    return word;
#endif
  }
  template <std::unsigned_integral T>
  TERSE_HD T exclusive_sum(T own, T& total) const {
    T before = 0;
#ifdef __CUDA_ARCH__
    using Scan = cub::BlockScan<T, block_threads, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename Scan::TempStorage storage;
    Scan(storage).ExclusiveSum(own, before, total);
    __syncthreads();  // `storage` may be used again
#else
    total = own;
#endif
    return before;
  }
  template <std::unsigned_integral T>
  TERSE_HD T sum(T own) const {
#ifdef __CUDA_ARCH__
    using Reduce = cub::BlockReduce<T, block_threads>;
    __shared__ typename Reduce::TempStorage storage;
    own = Reduce(storage).Sum(own);
    __syncthreads();
#endif
    return own;
  }
};

/// Returns the kernels of the program; each is registered before `main` by a static member of its `Registered`.
inline std::vector<const void*>& kernels() {
  static std::vector<const void*> all;
  return all;
}

/// Returns the current device, or -1 if there is none, with all kernels loaded on it. CUDA loads a kernel at its first
/// launch, and loading may wait until the device is idle. After a message that waits for a peer, this wait has no
/// deadline.
inline int loaded_device() {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) return -1;
  for (const void* kernel : kernels()) {
    cudaFuncAttributes loaded{};
    check_cuda(cudaFuncGetAttributes(&loaded, kernel), "loading a kernel");
  }
  return device;
}

/// Runs a kernel; the single entry point of all kernels.
template <class Kernel>
__global__ void __launch_bounds__(tuning_of_kernel<Kernel>().threads,
                                  tuning_of_kernel<Kernel>().resident_blocks)
    run_kernel(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  CudaBlock block;
  kernel(block, shared);
}

template <class Kernel>
struct Registered {
  static inline const bool done = [] {
    kernels().push_back(reinterpret_cast<const void*>(&run_kernel<Kernel>));
    return true;
  }();
};

}  // namespace detail

namespace executor {

/// Executor that runs functors on the CUDA device that was current at its construction, in order on `stream`, a stream
/// of that device. Construction loads the program's kernels there. The device must be current in every thread that uses
/// the executor, or it throws usage_error. Only functions with a documented wait block the host, and no memory is
/// allocated. Requires nvcc with -fmad=false and --expt-relaxed-constexpr, which the `terse-cuda` dependency and
/// package set; with them the results equal the host's bit for bit.
struct cuda {
  cudaStream_t stream = nullptr;
  int device = detail::loaded_device();

  using memory = terse::memory::device;
  using staging = terse::memory::pinned;
  static constexpr bool grid = true;

  /// Throws terse::error if the kernel could not be launched.
  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    static_assert(sizeof(Kernel) <= 32764, "terse: a functor is too large for a kernel's arguments");
    (void)detail::Registered<Kernel>::done;
    check_device();
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(detail::tuning_of_kernel<Kernel>().threads);
    config.stream = stream;
    // Reports only this launch: cudaGetLastError, needed after a launch in angle brackets, would report any earlier
    // error.
    detail::check_cuda(cudaLaunchKernelEx(&config, detail::run_kernel<Kernel>, kernel), "launching a kernel");
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
  /// Waits for all launched work; throws terse::error if a part of it failed.
  void synchronize() const { detail::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

 private:
  void check_device() const {
    int current = -1;
    detail::check_cuda(cudaGetDevice(&current), "cudaGetDevice");
    if (current != device)
      throw usage_error("this executor was made for CUDA device " + std::to_string(device) +
                        ", and in this thread device " + std::to_string(current) +
                        " is current: call cudaSetDevice(" + std::to_string(device) +
                        ") in each thread that uses it");
  }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const {
    check_device();
    detail::check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  }
};

/// An `executor::cuda` with kernels tuned to a GPU and its streams:
/// `tuned_cuda<Tuning{.threads = 128, .rows = 2}> executor{stream}`.
template <Tuning tuned>
struct tuned_cuda : cuda {
  static constexpr Tuning tuning = tuned;
};

}  // namespace executor
}  // namespace terse
