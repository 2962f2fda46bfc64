// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "terse/executor/cuda.cuh"
#include "terse/transport/threads.hpp"

namespace terse::bench::gpu {

/// Ranks that are threads of one process, share a GPU and its stream, and copy messages within its memory, for measuring what
/// a step takes besides its network. The host waits for other ranks, never for the device, so that steps can be recorded.
class Neighbours {
  struct Address {
    const std::byte* data;
  };
  struct Batch {
    std::vector<Address> sent, received;
    std::vector<Send> sends;
    std::vector<Receive> receives;
  };
  using Inner = Threads::Ticket;

 public:
  using memory = terse::memory::device;

  class Ticket {
   public:
    bool ready() {
      if (batch_ == nullptr) return true;
      if (!addresses_.ready()) return false;
      wait();
      return true;
    }
    void wait() {
      if (batch_ == nullptr) return;
      addresses_.wait();
      for (std::size_t k = 0; k < receives_.size(); ++k)
        executor_.move(receives_[k].data, batch_->received[k].data,
                       static_cast<std::size_t>(receives_[k].bytes));
      // Who has sent may use its buffers again: what it launches comes behind these copies.
      for (std::size_t k = 0; k < receives_.size(); ++k)
        batch_->sends[k] = {receives_[k].peer, &nothing_, 1, 0};
      for (std::size_t k = 0; k < sends_.size(); ++k)
        batch_->receives[k] = {sends_[k].peer, &nothing_, 1, false};
      inner_
          ->exchange({batch_->sends.data(), receives_.size()}, {batch_->receives.data(), sends_.size()},
                     phase_)
          .wait();
      batch_.reset();
    }
    void wait(std::chrono::milliseconds) { wait(); }

   private:
    friend class Neighbours;
    Ticket(std::unique_ptr<Batch> batch, Inner addresses, Threads* inner, executor::cuda executor,
           std::span<const Send> sends, std::span<const Receive> receives, Phase phase)
        : batch_(std::move(batch)),
          addresses_(std::move(addresses)),
          inner_(inner),
          executor_(executor),
          sends_(sends),
          receives_(receives),
          phase_(phase) {}

    std::unique_ptr<Batch> batch_;
    Inner addresses_;
    Threads* inner_;
    executor::cuda executor_;
    std::span<const Send> sends_;
    std::span<const Receive> receives_;
    Phase phase_;
    std::byte nothing_{};
  };

  Neighbours(Threads inner, executor::cuda executor)
      : inner_(std::make_unique<Threads>(std::move(inner))), executor_(executor) {}

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }
  cudaStream_t stream() const { return executor_.stream; }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    auto batch = std::make_unique<Batch>();
    const std::size_t most = std::max(sends.size(), receives.size());
    batch->sent.resize(most);
    batch->received.resize(most);
    batch->sends.resize(most);
    batch->receives.resize(most);
    constexpr auto bytes = static_cast<index_t>(sizeof(Address));
    for (std::size_t k = 0; k < sends.size(); ++k) {
      batch->sent[k] = {sends[k].data};
      batch->sends[k] = {sends[k].peer, reinterpret_cast<const std::byte*>(&batch->sent[k]), bytes, 0};
    }
    for (std::size_t k = 0; k < receives.size(); ++k)
      batch->receives[k] = {receives[k].peer, reinterpret_cast<std::byte*>(&batch->received[k]), bytes,
                            false};
    Inner addresses = inner_->exchange({batch->sends.data(), sends.size()},
                                       {batch->receives.data(), receives.size()}, phase);
    return {std::move(batch), std::move(addresses), inner_.get(), executor_, sends, receives, phase};
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    detail::gather_host_bytes(*inner_, gather_, mine, all, phase);
  }
  Neighbours split(int color, int key) { return {inner_->split(color, key), executor_}; }

 private:
  std::unique_ptr<Threads> inner_;  // tickets point to it
  executor::cuda executor_;
  detail::HostGather gather_;
};

}  // namespace terse::bench::gpu
