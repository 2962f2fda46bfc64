// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "terse/transport/assembly.hpp"
#include "terse/transport/c10d_root.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// A transport over the ranks of a torch.distributed process group, by sends and receives of its backend for the host, Gloo:
///
///     c10d::ProcessGroup                              made by torch.distributed.init_process_group("gloo")
///     terse::C10d transport(group);                   collective: all ranks of the group make theirs in the same order, on one thread
///
/// All channels share the group's connections. Their messages have tags from 2^24 on, which no other code may use in this
/// group. The group's own collectives may run at the same time.
///
/// Gloo's messages can't be polled: `wait` is Gloo's, and a ticket's first `ready()` gives the batch to a thread that waits
/// for it. A wait that takes longer than the deadline, or whose message fails, throws peer_error. It also closes this rank's
/// connections in the whole group, including those of PyTorch itself, so that waits for it end on all other ranks; a process
/// that ends closes them, too. A message that is longer than its room ends the receiver's process. Each message costs some
/// allocations in LibTorch.
class C10d {
  using Root = detail::C10dRoot;
  using Group = detail::C10dGroup;
  using Work = decltype(std::declval<Group&>().send(std::declval<std::vector<at::Tensor>&>(), 0, 0));

  struct Message {
    Work work;
    int peer;
  };
  struct Batch {
    std::vector<Message> messages;
    std::atomic<std::size_t> done{0};  // messages waited for so far
    Phase phase = Phase::setup;
    bool used = false;
    bool watched = false;  // by a thread, which alone waits then
    std::mutex mutex;
    std::condition_variable changed;
    bool finished = false;
    std::exception_ptr failure;
  };
  /// Longest wait passed to Gloo, which adds it to a clock of nanoseconds.
  static constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 20);

 public:
  using memory = terse::memory::host;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : end_(std::exchange(other.end_, nullptr)), batch_(std::exchange(other.batch_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(end_, other.end_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    ~Ticket() {
      if (batch_ != nullptr) abandon(*batch_);
    }

    bool ready() {
      if (batch_ == nullptr) return true;
      Batch& batch = *batch_;
      if (!batch.watched) {
        batch.finished = false;
        batch.failure = nullptr;
        end_->root_->waiters.start([](void* what) { watch(*static_cast<Batch*>(what)); }, batch_);
        batch.watched = true;
      }
      {
        const std::lock_guard lock(batch.mutex);
        if (!batch.finished) return false;
      }
      leave();
      return true;
    }
    void wait() {
      if (batch_ != nullptr) wait(end_->deadline_);
    }
    void wait(Deadline deadline) {
      if (batch_ == nullptr) return;
      Batch& batch = *batch_;
      deadline = detail::time_left(deadline);
      const auto until = detail::time_after(deadline);
      if (batch.watched) {
        std::unique_lock lock(batch.mutex);
        if (!batch.changed.wait_until(lock, until, [&] { return batch.finished; })) blame_late(deadline);
        lock.unlock();
        leave();
        return;
      }
      for (; batch.done < batch.messages.size(); ++batch.done) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
        const auto patience =
            std::clamp(left, std::chrono::milliseconds(1), longest);  // 0 would be the group's own deadline
        try {
          batch.messages[batch.done].work->wait(patience);
        } catch (const std::exception& failure) {
          if (std::chrono::steady_clock::now() >= until) blame_late(deadline);
          blame_failed(failure);
        }
      }
      release();
    }

   private:
    friend class C10d;
    Ticket(C10d* end, Batch* batch) : end_(end), batch_(batch) {}

    static void watch(Batch& batch) {
      std::exception_ptr failure;
      try {
        for (; batch.done < batch.messages.size(); ++batch.done)
          batch.messages[batch.done].work->wait(longest);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(batch.mutex);
      batch.failure = failure;
      batch.finished = true;
      batch.changed.notify_all();
    }
    /// Releases a batch whose thread has finished. Throws peer_error if the batch failed.
    void leave() {
      batch_->watched = false;
      if (batch_->failure) {
        try {
          std::rethrow_exception(batch_->failure);
        } catch (const std::exception& failure) {
          blame_failed(failure);
        }
      }
      release();
    }
    void release() {
      batch_->messages.clear();
      batch_->used = false;
      batch_ = nullptr;
    }
    int missing() const {
      return batch_->messages[std::min(batch_->done.load(), batch_->messages.size() - 1)].peer;
    }
    [[noreturn]] void blame_late(Deadline deadline) const {
      end_->root_->close();
      throw peer_error("waited " + std::to_string(deadline.count()) + " ms for rank " +
                           std::to_string(missing()) + " in " +
                           detail::place_of(batch_->phase, detail::Call::current()) +
                           ": late, or in another call; " + detail::same_calls,
                       missing(), end_->rank());
    }
    [[noreturn]] void blame_failed(const std::exception& failure) const {
      end_->root_->close();
      throw peer_error("a message from or to rank " + std::to_string(missing()) + " has failed in " +
                           detail::place_of(batch_->phase, detail::Call::current()) +
                           ", as messages do if its process has ended, or it has lost another rank: " +
                           first_line(failure),
                       missing(), end_->rank());
    }

    C10d* end_;
    Batch* batch_;
  };

  /// Makes a separate channel over `group`. Collective. No wait lasts longer than `deadline`. Throws usage_error if the group
  /// has no backend for the host.
  explicit C10d(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                Deadline deadline = std::chrono::seconds(60))
      : root_(Root::of(group)), deadline_(detail::positive(deadline, group->getRank())) {
    rank_ = group->getRank();
    for (int rank = 0; rank < group->getSize(); ++rank) members_.push_back(rank);
    tag_ = Root::meeting;
    Assembly<int, C10d> everyone(*this);
    const auto all = everyone(*this, *root_->next_tag, Phase::setup);
    tag_ = *std::max_element(all.begin(), all.end());
    *root_->next_tag = tag_ + 1;
  }
  C10d(C10d&&) = default;
  C10d& operator=(C10d&&) = default;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    if (sends.empty() && receives.empty()) return Ticket(this, nullptr);
    Batch& batch = unused_batch();
    batch.phase = phase;
    batch.done = 0;
    batch.used = true;
    int peer = -1;
    try {
      for (const Receive& receive : receives) {
        peer = receive.peer;
        std::vector<at::Tensor> tensors{Root::bytes_at(receive.data, receive.bytes)};
        batch.messages.push_back({root_->group->recv(tensors, member(receive.peer), tag_), receive.peer});
      }
      for (const Send& send : sends) {
        peer = send.peer;
        std::vector<at::Tensor> tensors{Root::bytes_at(const_cast<std::byte*>(send.data), send.bytes)};
        batch.messages.push_back({root_->group->send(tensors, member(send.peer), tag_), send.peer});
      }
    } catch (const std::exception& failure) {
      abandon(batch);
      root_->close();
      throw peer_error("no message can go to or from rank " + std::to_string(peer) + " in " +
                           detail::place_of(phase, detail::Call::current()) +
                           ", as over a connection that an earlier error has closed: " + first_line(failure),
                       peer, rank_);
    }
    return Ticket(this, &batch);
  }

  TERSE_COLD C10d split(int color, int key) {
    const detail::Call call(detail::Verb::split);
    const std::array<int, 3> mine{color, key, *root_->next_tag};
    Assembly<std::array<int, 3>, C10d> everyone(*this);
    const auto all = everyone(*this, mine, Phase::setup);
    int first = 0;
    std::map<int, int> number_of;            // of a color among all colors
    std::vector<std::pair<int, int>> ranks;  // of this color: by key, then by rank
    for (int rank = 0; rank < size(); ++rank) {
      const auto& [its_color, its_key, next_tag] = all[static_cast<std::size_t>(rank)];
      first = std::max(first, next_tag);
      number_of.emplace(its_color, 0);
      if (its_color == color) ranks.emplace_back(its_key, rank);
    }
    int colors = 0;
    for (auto& [its_color, number] : number_of) number = colors++;
    std::sort(ranks.begin(), ranks.end());
    C10d channel;
    channel.root_ = root_;
    channel.deadline_ = deadline_;
    channel.tag_ = first + number_of[color];
    *root_->next_tag = first + colors;
    for (const auto& [its_key, rank] : ranks) {
      if (rank == rank_) channel.rank_ = channel.size();
      channel.members_.push_back(member(rank));
    }
    return channel;
  }

 private:
  C10d() = default;

  static std::string first_line(const std::exception& failure) {
    const std::string text = failure.what();
    return text.substr(0, text.find('\n'));
  }
  /// Abandons a batch's messages; after that Gloo neither reads nor writes their buffers. Data that arrives for them stays
  /// on its connection and blocks all later data there; peers' deadlines end those waits.
  static void abandon(Batch& batch) noexcept {
    if (batch.watched) {
      for (const Message& message : batch.messages) message.work->abort();
      std::unique_lock lock(batch.mutex);
      batch.changed.wait(lock, [&] { return batch.finished; });
    }
    batch.watched = false;
    batch.messages.clear();
    batch.used = false;
  }
  int member(int peer) const { return members_[static_cast<std::size_t>(peer)]; }
  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  std::shared_ptr<Root> root_;
  std::chrono::milliseconds deadline_{};
  int tag_ = 0, rank_ = 0;
  std::vector<int> members_;  // ranks of the group
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace terse
