// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/regrouped.hpp"
#include "terse/transport/thread_mailbox.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse {

class ThreadGroup;

/// One rank's end of a ThreadGroup. Move-only; one thread at a time may use it.
class Threads {
  using Shared = detail::ThreadShared;
  using Post = Shared::Post;
  using Batch = Shared::Batch;
  static constexpr std::uint64_t done = Batch::done;

 public:
  using memory = terse::memory::host;

  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : end_(std::exchange(other.end_, nullptr)), batch_(std::exchange(other.batch_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() {
      if (batch_ != nullptr) end_->abandon(*batch_);
    }

    /// Copies messages that have arrived; returns true once all messages are received, and the sent ones taken. Throws
    /// peer_error if the group is poisoned, a peer has finished its program, or the batch is older than the deadline.
    bool ready();
    void wait();
    /// Throws peer_error if the batch isn't done after `deadline`; detail::ThreadBlame finds the reason. Other batches of
    /// this thread make progress during the wait, so ranks may wait for theirs in different orders.
    void wait(Deadline deadline);
    /// Returns the first peer that has not sent its message or not taken this rank's message; -1 if there is none.
    int awaited();

   private:
    friend class Threads;
    Ticket(Threads* end, Batch* batch) : end_(end), batch_(batch) {}
    void finish() {
      end_->retire(*batch_);
      batch_ = nullptr;
    }
    Threads* end_;
    Batch* batch_;
  };

  Threads(Threads&&) = default;
  Threads& operator=(Threads&&) = default;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(channel_->members.size()); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase);

  /// Reports that this rank is busy with work that may take longer than the deadline, such as an evaluation: the deadlines of
  /// waits that need this rank begin again. Throws peer_error if the group is poisoned.
  void here();

  Threads split(int color, int key);

  /// Goes on without the ranks that are lost, after a peer_error, or after a mismatch_error of a rank that joins: returns a transport
  /// among all ranks that call it, in the order of their numbers. Lost are ranks whose programs have ended, the rank that the peer_error names, and those that don't call it
  /// within the group's deadline; if they communicate later, they get a peer_error. Returns at once when all others have called it,
  /// so no survivor should work for longer than the deadline without a call (`here` tells it of the loss).
  ///
  ///     try { ... } catch (const terse::peer_error&) { auto [ranks, before] = transport.regroup(); ... }
  ///
  /// Collective among the survivors, on the transport that ThreadGroup::run, regroup or admit gave last. Optimizers, channels and
  /// tickets of the old group stay unusable. Throws usage_error on a channel from `split`, and if no rank is lost: all ranks have called it, as when they
  /// make different calls, or none has ended within the deadline. Ranks that have joined with this group and don't call it are left then. Throws peer_error if the others have gone on without this rank. Cost: no messages.
  [[nodiscard]] Regrouped<Threads> regroup();

  /// Admits the threads that wait in ThreadGroup::add_rank: returns a transport among the ranks and, after them, those that join; nothing if
  /// none waits. Never waits itself.
  ///
  ///     if (auto wider = transport.admit()) { ... wider->transport ... }
  ///
  /// Collective among all ranks, on the transport that ThreadGroup::run, regroup or admit gave last; all get the answer that the first
  /// to call got. With `at_once` the first rank that finds a waiting one admits it, and others learn of it in their next call, which may
  /// come after another step: for ranks that never wait for each other (AsyncSwarmSgd). A rank that has gone on in a wider group gets
  /// usage_error from optimizers and channels of the old one, and from its `admit` unless `at_once`. Throws usage_error on a channel from
  /// `split`; peer_error if a rank is lost.
  [[nodiscard]] std::optional<Regrouped<Threads>> admit(bool at_once = false);

  /// Makes a mailbox among this channel's ranks. Collective; throws usage_error unless all request packets of one size.
  detail::ThreadMailbox mailbox(index_t bytes);

 private:
  friend class ThreadGroup;
  Threads(std::shared_ptr<Shared> shared, std::shared_ptr<Shared::Channel> channel, int rank);

  static std::size_t member(const Shared::Channel& channel, int rank) {
    return static_cast<std::size_t>(channel.members[static_cast<std::size_t>(rank)]);
  }
  std::size_t world(int rank) const { return member(*channel_, rank); }
  void require_peer(int peer) const;
  void require_whole(const char* what) const;
  /// Throws usage_error if this rank has gone on in another group.
  void require_here() const;
  /// Returns this rank's end of the group in which the ranks go on.
  Regrouped<Threads> next_group() const;
  std::condition_variable& wake() { return shared_->wake[world(rank_)]; }

  Batch& unused_batch();

  /// Throws peer_error if the group has given up, and usage_error if this rank has gone on in another one.
  void check(Phase phase) const;
  [[noreturn]] void give_up(const std::string& where) const;

  /// Throws peer_error if a peer's program has returned, because the peer then sends and takes no more messages.
  void check_left(const Batch& batch);
  void accuse_leaver(int peer, Phase phase);

  /// Poisons the group for a message of the wrong length: the sender is the culprit, unless the two ranks are in
  /// different calls.
  TERSE_COLD void refuse_length(const Batch& batch, const Post& post, const Receive& receive);

  /// Receives messages that have arrived, and completes sends that were taken. Returns true if the lock was released
  /// in between.
  bool advance(Batch& batch, std::unique_lock<std::mutex>& lock);

  /// Advances all batches that this thread has in flight. Returns true if the lock was released in between.
  bool advance_all(std::unique_lock<std::mutex>& lock);
  /// Marks a batch as wanted, and this thread as the owner of the end's batches: another thread may have posted them.
  void want(Batch& wanted);
  void retire(Batch& batch);

  /// Throws peer_error for a wait that is at its deadline, or returns its later end.
  Shared::Clock::time_point patience(const Batch& batch, Deadline deadline);

  /// Abandons a batch whose buffers are about to disappear: no rank may read them or wait for them after that.
  void abandon(Batch& batch);

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Shared::Channel> channel_;
  int rank_;
  std::uint64_t splits_ = 0;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/thread_rank.ipp"
#endif
