// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/executor/concept.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// Carries messages that lie in an executor's memory over a transport T of host memory, by way of pinned host
/// buffers: device ranks as threads of one process (ThroughHost<Threads, executor::cuda>), also several on one GPU, and MPI
/// libraries that don't know of devices (ThroughHost<Mpi, executor::cuda>).
///
/// Cost: the host waits for the executor once when a batch is posted and once when it has arrived; each byte crosses
/// the bus once in each direction. The pinned buffers grow to the largest batch and stay.
template <Transport T, Executor E>
class ThroughHost {
  static_assert(std::is_same_v<typename T::memory, terse::memory::host>,
                "terse: ThroughHost goes around a transport of host memory");
  using Bytes = buffer<std::byte, typename E::staging>;
  using InnerTicket = decltype(std::declval<T&>().exchange({}, {}, Phase::setup));

  /// What a batch under way keeps; recycled, so that steady traffic allocates nothing.
  struct Batch {
    Bytes staging;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::span<const Receive> to;
    bool used = false;
  };

 public:
  using memory = typename E::memory;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : inner_(std::move(other.inner_)),
          executor_(other.executor_),
          batch_(std::exchange(other.batch_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(inner_, other.inner_);
      std::swap(executor_, other.executor_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    ~Ticket() {
      if (batch_ != nullptr) batch_->used = false;
    }

    bool ready() {
      if (batch_ == nullptr) return true;
      if (!inner_.ready()) return false;
      finish();
      return true;
    }
    void wait() {
      inner_.wait();
      finish();
    }
    void wait(std::chrono::milliseconds deadline) {
      inner_.wait(deadline);
      finish();
    }

   private:
    friend class ThroughHost;
    Ticket(InnerTicket inner, E executor, Batch* batch)
        : inner_(std::move(inner)), executor_(executor), batch_(batch) {}

    void finish() {
      if (batch_ == nullptr) return;
      if (batch_->sends.empty() && batch_->receives.empty()) {
        std::exchange(batch_, nullptr)->used = false;
        return;
      }
      for (std::size_t k = 0; k < batch_->receives.size(); ++k)
        executor_.send(batch_->to[k].data, batch_->receives[k].data,
                       static_cast<std::size_t>(batch_->to[k].bytes));
      executor_.synchronize();  // the staging buffer is free again
      batch_->used = false;
      batch_ = nullptr;
    }

    InnerTicket inner_;
    E executor_;
    Batch* batch_;
  };

  ThroughHost(T inner, E executor) : inner_(std::make_unique<T>(std::move(inner))), executor_(executor) {
    // Two batches under way is what an exchange needs; more are made when asked for.
    for (int k = 0; k < 2; ++k) batches_.push_back(std::make_unique<Batch>());
  }

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    Batch& batch = unused_batch();
    batch.sends.assign(sends.begin(), sends.end());
    batch.receives.assign(receives.begin(), receives.end());
    batch.to = receives;
    index_t bytes = 0;
    for (const Send& send : sends) bytes += aligned(send.bytes);
    for (const Receive& receive : receives) bytes += aligned(receive.bytes);
    if (batch.staging.size() < bytes) batch.staging = Bytes(bytes);
    std::byte* place = batch.staging.data();
    for (Send& send : batch.sends) {
      executor_.bring(place, send.data, static_cast<std::size_t>(send.bytes));
      send.data = place;
      place += aligned(send.bytes);
    }
    for (Receive& receive : batch.receives) {
      // What is not sent of an `up_to` message is left as it is.
      if (receive.up_to) executor_.bring(place, receive.data, static_cast<std::size_t>(receive.bytes));
      receive.data = place;
      place += aligned(receive.bytes);
    }
    if (bytes > 0) executor_.synchronize();
    batch.used = true;
    try {
      return Ticket(inner_->exchange(batch.sends, batch.receives, phase), executor_, &batch);
    } catch (...) {
      batch.used = false;
      throw;
    }
  }

  /// Host bytes, for set-up and agreement.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    detail::gather_host_bytes(*inner_, gather_, mine, all, phase);
  }

  ThroughHost split(int color, int key) { return ThroughHost(inner_->split(color, key), executor_); }

 private:
  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  std::unique_ptr<T> inner_;  // tickets point to it
  E executor_;
  std::vector<std::unique_ptr<Batch>> batches_;
  detail::HostGather gather_;
};

}  // namespace terse
