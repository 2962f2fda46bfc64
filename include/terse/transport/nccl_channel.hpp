// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/device/memory.hpp"
#include "terse/transport/backoff.hpp"
#include "terse/transport/concept.hpp"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "terse needs NCCL 2.18.1 or later, the first with ncclCommSplit and communicators that don't block"
#endif

namespace terse::detail {

class NcclChannel;

/// All communicators of one rank, which has its own device. They are aborted together, in one group: a kernel that waits
/// for a dead peer blocks its stream and every cudaFree of the device, including those of further aborts.
struct NcclFamily {
  std::mutex mutex;                    // held for each call to NCCL, and never while waiting
  std::vector<NcclChannel*> channels;  // parents before their splits
  std::vector<std::shared_ptr<NcclChannel>>
      abandoned;       // communicators that NCCL may still write; kept with the family
  std::string reason;  // reason of the abort; empty before one
  int culprit = -1;

  /// Returns the family of the current device's communicators: a new one if there are none, or if they were aborted.
  static std::shared_ptr<NcclFamily> of_this_device() {
    static std::mutex guard;
    static std::map<int, std::weak_ptr<NcclFamily>> families;
    int device = -1;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const std::lock_guard lock(guard);
    std::shared_ptr<NcclFamily> family = families[device].lock();
    if (family) {
      const std::lock_guard calls(family->mutex);
      if (family->reason.empty()) return family;
    }
    family = std::make_shared<NcclFamily>();
    families[device] = family;
    return family;
  }
};

/// One communicator: its lifetime, its errors, and waits for it. NCCL's calls on communicators that don't block
/// return early; until ncclCommGetAsyncError reports that they are done, no other call is allowed.
class NcclChannel {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  NcclChannel(std::shared_ptr<NcclFamily> family_, cudaStream_t stream_, Deadline deadline_)
      : family(std::move(family_)), stream(stream_), deadline(positive(deadline_)) {
    const std::lock_guard lock(family->mutex);
    family->channels.push_back(this);
  }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  ~NcclChannel() {
    {
      Lock lock(family->mutex);
      if (comm != nullptr) close(lock);
      std::erase(family->channels, this);
    }
    cudaFree(device_);
    cudaFreeHost(host_);
  }

  static ncclConfig_t config() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;  // if it were shared, one abort would end several, and other ones on other ranks
    return config;
  }

  /// Returns the lock to hold during calls to NCCL. Throws if the communicators were aborted.
  Lock open() {
    Lock lock(family->mutex);
    if (!family->reason.empty())
      throw peer_error("the NCCL communicators of this rank were aborted: " + family->reason, family->culprit,
                       named(rank));
    return lock;
  }

  /// Checks the immediate result of a call.
  void check(Lock& lock, ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) fail(lock, result);
  }

  /// Checks whether `handle` (this communicator, or the parent from which it is being split) is done with its last
  /// call.
  bool done(Lock& lock, ncclComm_t handle) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(handle, &state);
    check(lock, result);
    check(lock, state);
    return state == ncclSuccess;
  }

  /// Waits until `handle` is done with its last call; at `until`, aborts all communicators and throws peer_error.
  void settle(ncclComm_t handle, Clock::time_point until) {
    for (Backoff pause;; pause()) {
      Lock lock = open();
      if (done(lock, handle)) return;
      if (Clock::now() > until) late(lock);
    }
  }

  /// Waits for all work on the stream, including work that is not NCCL's. An error on any communicator ends the
  /// wait.
  void synchronize(Deadline patience) {
    const Clock::time_point until = time_after(patience);
    for (Backoff pause;; pause()) {
      Lock lock = open();
      bool quiet = true;
      for (NcclChannel* channel : family->channels)
        if (channel->comm != nullptr && !channel->done(lock, channel->comm) && channel == this) quiet = false;
      const cudaError_t state = cudaStreamQuery(stream);
      if (state == cudaSuccess && quiet) return;
      if (state == cudaErrorNotReady) {
        (void)cudaGetLastError();  // otherwise the next launch would report it as its own error
      } else if (state != cudaSuccess) {
        abort(lock, std::string("the work on the stream failed: ") + cudaGetErrorString(state), named(rank));
        throw error(family->reason, named(rank));
      }
      if (Clock::now() > until) late(lock);
    }
  }

  /// Gathers every rank's block of host bytes on every rank, in rank order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase why) {
    const std::size_t bytes = mine.size();
    if (all.size() != bytes * static_cast<std::size_t>(size))
      throw usage_error("all_gather of " + std::to_string(bytes) + " bytes from each of " +
                            std::to_string(size) + " ranks into " + std::to_string(all.size()),
                        rank);
    if (bytes == 0) return;
    phase = why;
    reserve(all.size());
    std::byte* const own = device_ + static_cast<std::size_t>(rank) * bytes;
    std::copy(mine.begin(), mine.end(), host_);
    check_cuda(cudaMemcpyAsync(own, host_, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    {
      Lock lock = open();
      check(lock, ncclAllGather(own, device_, bytes, ncclInt8, comm, stream));
    }
    settle(comm, time_after(deadline));
    check_cuda(cudaMemcpyAsync(host_, device_, all.size(), cudaMemcpyDeviceToHost, stream),
               "cudaMemcpyAsync");
    synchronize(deadline);
    std::copy_n(host_, all.size(), all.begin());
  }

  /// Returns the name of a rank of this channel in error texts.
  int named(int member) const { return names.empty() ? member : names[static_cast<std::size_t>(member)]; }
  /// Returns the peer that NCCL waits for, which it doesn't name: of two ranks the other one, else -1.
  int suspect() const { return size == 2 ? named(1 - rank) : -1; }

  /// Aborts all communicators; the first reason is kept.
  void give_up(const std::string& reason) noexcept {
    Lock lock(family->mutex);
    if (family->reason.empty()) abort(lock, reason, named(rank));
  }

  std::shared_ptr<NcclFamily> family;
  cudaStream_t stream;
  std::chrono::milliseconds deadline;
  ncclComm_t comm = nullptr;   // NCCL itself writes it at the end of a split
  Phase phase = Phase::setup;  // of the last call, for error texts
  int rank = -1, size = 0;
  std::vector<int> names;  // of the ranks, in error texts; empty: their numbers

 private:
  void abort(Lock&, std::string reason, int culprit) noexcept {
    family->reason = std::move(reason);
    family->culprit = culprit;
    ncclGroupStart();
    for (NcclChannel* channel : family->channels)
      if (channel->comm != nullptr) ncclCommAbort(std::exchange(channel->comm, nullptr));
    ncclGroupEnd();
  }

  [[noreturn]] void fail(Lock& lock, ncclResult_t result) {
    std::string text = std::string("NCCL, in phase '") + name(phase) + "': " + ncclGetErrorString(result);
    if (const char* last = ncclGetLastError(comm); last != nullptr && *last != '\0')
      text += std::string(" (") + last + ")";
    if (result == ncclInvalidUsage) text += "; each rank needs a GPU of its own, chosen with cudaSetDevice";
    const bool own = result == ncclInvalidUsage || result == ncclInvalidArgument;
    const bool cuda = result == ncclUnhandledCudaError;
    abort(lock, text, own || cuda ? named(rank) : suspect());
    if (own) throw usage_error(text, named(rank));
    if (cuda) throw error(text, named(rank));
    throw peer_error(text, family->culprit, named(rank));
  }

  [[noreturn]] void late(Lock& lock) {
    const std::string whom = suspect() < 0 ? "one or more of " + std::to_string(size) + " ranks"
                                           : "rank " + std::to_string(suspect());
    const std::string text = "gave up waiting for " + whom + " in phase '" + name(phase) + "'";
    abort(lock, text, suspect());
    throw peer_error(text, suspect(), named(rank));
  }

  /// Finalizes the communicator, which takes all ranks of the machine; aborts all at the deadline.
  void close(Lock& lock) noexcept {
    const Clock::time_point until = time_after(deadline);
    Backoff pause;
    ncclResult_t state = ncclCommFinalize(comm);
    while (state == ncclInProgress && comm != nullptr && Clock::now() <= until) {
      lock.unlock();
      pause();
      lock.lock();
      if (comm == nullptr) return;  // another channel has aborted all
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess)
      ncclCommDestroy(std::exchange(comm, nullptr));
    else
      abort(lock, std::string("a channel could not be closed, last in phase '") + name(phase) + "'",
            suspect());
  }

  /// Makes room for all_gather, on the device and in page-locked memory. Grows only while the stream is idle, since
  /// allocation waits for the device.
  void reserve(std::size_t bytes) {
    if (bytes <= capacity_) return;
    synchronize(deadline);
    const std::size_t wanted = std::max<std::size_t>(bytes, 1024);
    capacity_ = 0;
    cudaFree(std::exchange(device_, nullptr));
    cudaFreeHost(std::exchange(host_, nullptr));
    void *on_device = nullptr, *on_host = nullptr;
    check_cuda(cudaMalloc(&on_device, wanted), "cudaMalloc");
    device_ = static_cast<std::byte*>(on_device);
    check_cuda(cudaMallocHost(&on_host, wanted), "cudaMallocHost");
    host_ = static_cast<std::byte*>(on_host);
    capacity_ = wanted;
  }

  std::byte *device_ = nullptr, *host_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace terse::detail
