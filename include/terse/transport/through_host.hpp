// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/executor/concept.hpp"
#include "terse/transport/assembly.hpp"

namespace terse {

/// A transport for messages in an executor's memory, over a transport T of host memory and by pinned host buffers. For
/// device ranks that are threads of one process (ThroughHost<Threads, executor::cuda>), even if several share a GPU,
/// and for MPI libraries that can't read device memory (ThroughHost<Mpi, executor::cuda>).
///
/// Cost: the host waits for the executor once when a batch is posted and once when it has arrived. Each byte crosses the
/// bus once in each direction, even if it is sent to several peers. Adjacent messages of a batch are copied together.
/// The pinned buffers grow to the largest batch and keep that size.
template <Transport T, Executor E>
class ThroughHost {
  static_assert(std::is_same_v<typename T::memory, terse::memory::host>,
                "terse: ThroughHost goes around a transport of host memory");
  using Bytes = buffer<std::byte, typename E::staging>;
  using InnerTicket = decltype(std::declval<T&>().exchange({}, {}, Phase::setup));

  /// State of a batch in flight; recycled, so that steady traffic allocates nothing.
  struct Batch {
    Bytes staging;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::span<const Receive> to;
    bool used = false;
  };

 public:
  using memory = typename E::memory;
  static constexpr bool joins_neighbors = true;

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
    void wait(Deadline deadline) {
      inner_.wait(deadline);
      finish();
    }
    /// See KnowsAwaited.
    int awaited() requires KnowsAwaited<InnerTicket> { return inner_.awaited(); }

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
      const auto& staged = batch_->receives;
      for_each_run(batch_->to, staged, [&](std::size_t k, index_t bytes) {
        executor_.send(batch_->to[k].data, staged[k].data, static_cast<std::size_t>(bytes));
      });
      executor_.synchronize();  // the staging buffer is free again
      batch_->used = false;
      batch_ = nullptr;
    }

    InnerTicket inner_;
    E executor_;
    Batch* batch_;
  };

  ThroughHost(T inner, E executor) : inner_(std::make_unique<T>(std::move(inner))), executor_(executor) {
    // An exchange needs two batches in flight; more are made on demand.
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
    std::byte* place = stage(sends, batch.sends, batch.staging.data());
    stage(receives, batch.receives, place);
    for_each_run(sends, batch.sends, [&](std::size_t k, index_t count) {
      executor_.bring(const_cast<std::byte*>(batch.sends[k].data), sends[k].data,
                      static_cast<std::size_t>(count));
    });
    // Preserves those bytes of an `up_to` message that are not sent.
    if (std::any_of(receives.begin(), receives.end(), [](const Receive& receive) { return receive.up_to; }))
      for_each_run(receives, batch.receives, [&](std::size_t k, index_t count) {
        executor_.bring(batch.receives[k].data, receives[k].data, static_cast<std::size_t>(count));
      });
    if (bytes > 0) executor_.synchronize();
    batch.used = true;
    try {
      return Ticket(inner_->exchange(batch.sends, batch.receives, phase), executor_, &batch);
    } catch (...) {
      batch.used = false;
      throw;
    }
  }

  /// Gathers host bytes, for construction and agreement.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    detail::gather_host_bytes(*inner_, gather_, mine, all, phase);
  }

  void here() requires SaysHere<T> { inner_->here(); }
  ThroughHost split(int color, int key) { return ThroughHost(inner_->split(color, key), executor_); }

 private:
  /// Gives each message its place in the staging buffer from `place` on, and returns the end of the places. A message with
  /// the bytes of the one before shares its place. A message adjacent to it in the executor's memory is also adjacent here.
  template <class Message>
  static std::byte* stage(std::span<const Message> messages, std::vector<Message>& staged, std::byte* place) {
    std::byte* end = place;
    for (std::size_t k = 0; k < messages.size(); ++k) {
      if (k > 0 && is_sent_again(messages[k - 1], messages[k])) {
        staged[k].data = staged[k - 1].data;
        continue;
      }
      if (k == 0 || messages[k - 1].data + messages[k - 1].bytes != messages[k].data) end = place;
      staged[k].data = end;
      end += messages[k].bytes;
      place += aligned(messages[k].bytes);
    }
    return place;
  }
  static bool is_sent_again(const Send& one, const Send& other) {
    return one.data == other.data && one.bytes == other.bytes;
  }
  static bool is_sent_again(const Receive&, const Receive&) { return false; }
  /// Calls copy(k, bytes) for each run of messages, from the k-th on, that are adjacent on both sides.
  template <class Message, class Copy>
  static void for_each_run(std::span<const Message> messages, const std::vector<Message>& staged,
                           const Copy& copy) {
    std::size_t first = 0;
    index_t bytes = 0;
    for (std::size_t k = 0; k < messages.size(); ++k) {
      if (k > 0 && is_sent_again(messages[k - 1], messages[k])) continue;
      if (bytes > 0 &&
          (messages[first].data + bytes != messages[k].data || staged[first].data + bytes != staged[k].data))
        copy(std::exchange(first, k), std::exchange(bytes, 0));
      if (bytes == 0) first = k;
      bytes += messages[k].bytes;
    }
    if (bytes > 0) copy(first, bytes);
  }

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
