// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "terse/device/cuda.cuh"
#include "terse/transport/threads.hpp"

namespace terse::bench::gpu {

/// Ranks that are threads of one process, share a GPU and its stream, and copy messages within its memory, for measuring what
/// a step takes besides its network. The host waits for other ranks, never for the device, so that steps can be recorded.
class Neighbours {
  /// Where a message lies, and whether its copy has been enqueued.
  struct Post {
    const std::byte* data;
    std::atomic<bool>* taken;
  };
  struct Batch {
    std::vector<Post> sent, received;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::unique_ptr<std::atomic<bool>[]> taken;
    std::span<const Receive> to;
    std::optional<Threads::Ticket> posts;  // until they have come
  };
  struct State {
    Threads inner;
    executor::cuda executor;
    std::list<Batch> open;

    /// Enqueues what can be, of all batches, so that ranks may wait for theirs in different orders.
    void progress() {
      for (Batch& batch : open) {
        if (!batch.posts || !batch.posts->ready()) continue;
        batch.posts.reset();
        for (std::size_t k = 0; k < batch.to.size(); ++k) {
          executor.move(batch.to[k].data, batch.received[k].data,
                        static_cast<std::size_t>(batch.to[k].bytes));
          batch.received[k].taken->store(true, std::memory_order_release);
        }
      }
    }
    bool done(const Batch& batch) const {
      if (batch.posts) return false;
      for (std::size_t k = 0; k < batch.sent.size(); ++k)
        if (!batch.taken[k].load(std::memory_order_acquire)) return false;
      return true;
    }
  };

 public:
  using memory = terse::memory::device;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept : state_(other.state_), batch_(std::exchange(other.batch_, {})) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    bool ready() {
      if (!batch_) return true;
      state_->progress();
      if (!state_->done(**batch_)) return false;
      state_->open.erase(*batch_);
      batch_.reset();
      return true;
    }
    void wait() { wait(std::chrono::seconds(20)); }
    void wait(std::chrono::milliseconds deadline) {
      for (const auto until = std::chrono::steady_clock::now() + deadline; !ready();
           std::this_thread::yield())
        if (std::chrono::steady_clock::now() > until)
          throw peer_error("a neighbour is late", -1, state_->inner.rank());
    }

   private:
    friend class Neighbours;
    Ticket(State* state, std::list<Batch>::iterator batch) : state_(state), batch_(batch) {}
    State* state_;
    std::optional<std::list<Batch>::iterator> batch_;
  };

  Neighbours(Threads inner, executor::cuda executor)
      : state_(std::make_unique<State>(State{std::move(inner), executor, {}})) {}

  int rank() const { return state_->inner.rank(); }
  int size() const { return state_->inner.size(); }
  cudaStream_t stream() const { return state_->executor.stream; }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    Batch& batch = state_->open.emplace_back();
    constexpr auto bytes = static_cast<index_t>(sizeof(Post));
    batch.taken = std::make_unique<std::atomic<bool>[]>(sends.size());
    batch.sent.resize(sends.size());
    batch.received.resize(receives.size());
    batch.to = receives;
    for (std::size_t k = 0; k < sends.size(); ++k) {
      batch.sent[k] = {sends[k].data, &batch.taken[k]};
      batch.sends.push_back({sends[k].peer, reinterpret_cast<const std::byte*>(&batch.sent[k]), bytes, 0});
    }
    for (std::size_t k = 0; k < receives.size(); ++k)
      batch.receives.push_back(
          {receives[k].peer, reinterpret_cast<std::byte*>(&batch.received[k]), bytes, false});
    batch.posts.emplace(state_->inner.exchange(batch.sends, batch.receives, phase));
    return {state_.get(), std::prev(state_->open.end())};
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    detail::gather_host_bytes(state_->inner, gather_, mine, all, phase);
  }
  Neighbours split(int color, int key) { return {state_->inner.split(color, key), state_->executor}; }

 private:
  std::unique_ptr<State> state_;  // tickets point to it
  detail::HostGather gather_;
};

}  // namespace terse::bench::gpu
