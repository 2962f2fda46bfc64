// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/core/view.hpp"

namespace terse {

namespace detail {

/// Throws terse::error with the name of the failed call and CUDA's description.
inline void check_cuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw error(std::string(call) + ": " + cudaGetErrorString(result));
}

/// A stream that doesn't wait for the default stream.
class OwnStream {
 public:
  OwnStream() {
    check_cuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  OwnStream(OwnStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  OwnStream& operator=(OwnStream&&) = delete;
  ~OwnStream() {
    if (handle_ != nullptr) cudaStreamDestroy(handle_);
  }
  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

/// A point in the work of a stream for which another stream waits.
class StreamEvent {
 public:
  StreamEvent() {
    check_cuda(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() { cudaEventDestroy(handle_); }

  /// Sets the mark after all current work of `stream`.
  void mark(cudaStream_t stream) { check_cuda(cudaEventRecord(handle_, stream), "cudaEventRecord"); }
  /// Makes later work of `stream` wait for the mark, if one is set.
  void hold(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, handle_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace detail

namespace memory {

/// The memory of the current CUDA device.
struct device {
  static void* allocate(std::size_t bytes) {
    void* const place = allocate_uninitialized(bytes);
    // Streams that don't wait for the default stream must not see the memory before it is zeroed. A wait for the
    // whole device would also wait for messages, without a deadline.
    const detail::OwnStream own;
    detail::check_cuda(cudaMemsetAsync(place, 0, bytes, own.handle()), "cudaMemsetAsync");
    detail::check_cuda(cudaStreamSynchronize(own.handle()), "cudaStreamSynchronize");
    return place;
  }
  /// Allocates without initialization, so that compute-sanitizer's initcheck detects reads of unwritten memory. No two
  /// allocations are adjacent. So adjacent views belong to one allocation and may be copied as one.
  static void* allocate_uninitialized(std::size_t bytes) {
    void* place = nullptr;
    if (const cudaError_t result = cudaMalloc(&place, bytes + 1); result == cudaErrorMemoryAllocation)
      throw std::bad_alloc();
    else
      detail::check_cuda(result, "cudaMalloc");
    return place;
  }
  static void release(void* place) noexcept {
    // cudaFree ends a capture even for nullptr, and buffers may be moved during a capture.
    if (place != nullptr) cudaFree(place);
  }
  static void download(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  static void upload(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
    // From pageable memory the copy may still be in progress, and other streams would not wait for it.
    detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  static void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    detail::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    detail::check_cuda(cudaMemcpy(to, from, bytes, kind), "cudaMemcpy");
  }
};

/// Host memory that a device can access directly.
struct pinned {
  static void* allocate(std::size_t bytes) {
    void* place = nullptr;
    detail::check_cuda(cudaMallocHost(&place, bytes), "cudaMallocHost");
    std::memset(place, 0, bytes);
    return place;
  }
  static void release(void* place) noexcept {
    if (place != nullptr) cudaFreeHost(place);
  }
};

}  // namespace memory
}  // namespace terse
