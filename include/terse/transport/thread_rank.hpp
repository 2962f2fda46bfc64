// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/thread_blame.hpp"
#include "terse/transport/thread_mailbox.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse {

class ThreadGroup;

/// One rank's end of a ThreadGroup. Move-only; used by one thread at a time.
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
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(end_, other.end_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    ~Ticket() {
      if (batch_ != nullptr) end_->abandon(*batch_);
    }

    /// Copies what has arrived; true once all is received and taken. Throws peer_error if the group is poisoned, a
    /// peer has finished its program, or the batch is older than the deadline.
    bool ready() {
      if (batch_ == nullptr) return true;
      std::unique_lock lock(end_->shared_->mutex);
      end_->want(*batch_);
      // Again while time has passed without the lock: a peer may have taken its message in it, and left.
      do end_->check(batch_->phase);
      while (end_->advance_all(lock));
      if (batch_->open == 0) return finish(), true;
      end_->check_left(*batch_);
      const std::chrono::milliseconds deadline = end_->shared_->deadline;
      batch_->asked_at = Shared::Clock::now();
      if (!std::exchange(batch_->asked, true)) batch_->since = batch_->asked_at;
      if (batch_->asked_at - batch_->since > deadline)
        batch_->since = end_->patience(*batch_, deadline) - deadline;
      return false;
    }
    void wait() {
      if (batch_ != nullptr) wait(end_->shared_->deadline);
    }
    /// Throws peer_error when the batch isn't done after `deadline`, see detail::ThreadBlame for why. Batches that
    /// this thread posted earlier or later move along, so ranks may wait for theirs in different orders.
    void wait(Deadline deadline) {
      if (batch_ == nullptr) return;
      deadline = detail::time_left(deadline);
      auto until = detail::time_after(deadline);
      std::unique_lock lock(end_->shared_->mutex);
      end_->want(*batch_);
      batch_->waited = true;
      for (;;) {
        end_->check(batch_->phase);
        if (end_->advance_all(lock)) continue;  // time has passed without the lock
        if (batch_->open == 0) return finish();
        end_->check_left(*batch_);
        if (Shared::Clock::now() >= until) until = end_->patience(*batch_, deadline);
        end_->wake().wait_until(lock, until);
      }
    }

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

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    std::unique_lock lock(shared_->mutex);
    ++shared_->progress[world(rank_)];
    check(phase);
    // All or nothing: no peer may find a message of a list that is refused.
    for (const Receive& receive : receives) require_peer(receive.peer);
    for (const Send& send : sends) {
      require_peer(send.peer);
      Shared::Lane& out = channel_->lane(rank_, send.peer);
      if (out[out.posted].state != Post::State::free)
        throw usage_error("more than " + std::to_string(Shared::Lane::capacity) + " messages to rank " +
                              std::to_string(send.peer) + " are under way",
                          rank_);
    }
    Batch& batch = unused_batch();
    batch.channel = channel_.get();
    batch.rank = rank_;
    batch.phase = phase;
    batch.sends = sends;
    batch.receives = receives;
    batch.asked = batch.waited = batch.wanted = false;
    batch.poster = std::this_thread::get_id();
    batch.call = detail::Call::current();
    batch.send_numbers.clear();
    batch.receive_numbers.clear();
    for (const Send& send : sends) {
      Shared::Lane& out = channel_->lane(rank_, send.peer);
      out[out.posted] = {Post::State::posted, send.data, send.bytes, phase, batch.call};
      batch.send_numbers.push_back(out.posted++);
      shared_->wake[world(send.peer)].notify_all();
    }
    for (const Receive& receive : receives)
      batch.receive_numbers.push_back(channel_->lane(receive.peer, rank_).expected++);
    batch.open = sends.size() + receives.size();
    batch.used = true;
    shared_->under_way[world(rank_)].push_back(&batch);
    return Ticket(this, &batch);
  }

  /// Says that this rank is at work on something that may take longer than the deadline, such as an evaluation: the deadlines
  /// of waits that need it begin again. Throws peer_error if the group is poisoned.
  void here() {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->reason.empty()) give_up("at its work");
    shared_->here[world(rank_)] = Shared::Clock::now();
  }

  Threads split(int color, int key) {
    const detail::Call call(detail::Verb::split);
    struct Choice {
      int color, key;
    };
    Assembly<Choice, Threads> assembly(*this);
    const std::span<const Choice> choices = assembly(*this, {color, key}, Phase::setup);
    std::vector<std::pair<int, int>> order;  // key, rank
    for (int peer = 0; peer < size(); ++peer)
      if (choices[static_cast<std::size_t>(peer)].color == color)
        order.emplace_back(choices[static_cast<std::size_t>(peer)].key, peer);
    std::sort(order.begin(), order.end());
    std::vector<int> members;
    int rank = 0;
    for (const auto& [_, peer] : order) {
      if (peer == rank_) rank = static_cast<int>(members.size());
      members.push_back(static_cast<int>(world(peer)));
    }
    return Threads(shared_, shared_->take(channel_->id, ++splits_, color, std::move(members)), rank);
  }

  /// A mailbox among this channel's ranks. Collective; throws usage_error unless all want packets of the same size.
  ThreadMailbox mailbox(index_t bytes) {
    const detail::Call call(detail::Verb::mailbox);
    detail::agree_on_packet(*this, bytes);
    std::shared_ptr<ThreadMailbox::Slots> boxes;
    if (rank_ == 0) boxes = std::make_shared<ThreadMailbox::Slots>(size(), bytes);
    using Place = const std::shared_ptr<ThreadMailbox::Slots>*;
    Assembly<Place, Threads> everyone(*this);
    const Place first = everyone(*this, &boxes, Phase::setup).front();
    if (rank_ != 0) boxes = *first;
    // Rank 0 keeps the place until all have been there.
    barrier(*this);
    return ThreadMailbox(shared_, std::move(boxes), rank_, static_cast<int>(world(rank_)));
  }

 private:
  friend class ThreadGroup;
  Threads(std::shared_ptr<Shared> shared, std::shared_ptr<Shared::Channel> channel, int rank)
      : shared_(std::move(shared)), channel_(std::move(channel)), rank_(rank) {
    // Room for two batches under way, which is what an exchange needs; more are made when asked for.
    for (int k = 0; k < 2; ++k) {
      Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
      batch.send_numbers.reserve(channel_->members.size());
      batch.receive_numbers.reserve(channel_->members.size());
    }
  }

  static std::size_t member(const Shared::Channel& channel, int rank) {
    return static_cast<std::size_t>(channel.members[static_cast<std::size_t>(rank)]);
  }
  std::size_t world(int rank) const { return member(*channel_, rank); }
  void require_peer(int peer) const {
    if (peer < 0 || peer >= size() || peer == rank_)
      throw usage_error(
          "no message can go between rank " + std::to_string(rank_) + " and rank " + std::to_string(peer),
          rank_);
  }
  std::condition_variable& wake() { return shared_->wake[world(rank_)]; }

  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  void check(Phase phase) const {
    if (!shared_->reason.empty()) give_up("in " + detail::place_of(phase, detail::Call::current()));
  }
  [[noreturn]] void give_up(const std::string& where) const {
    throw peer_error("gave up " + where + ": " + shared_->reason, shared_->culprit,
                     static_cast<int>(world(rank_)));
  }

  /// A peer whose program has returned sends and takes nothing any more.
  void check_left(const Batch& batch) {
    for (std::size_t k = 0; k < batch.receives.size(); ++k)
      if (batch.receive_numbers[k] != done && shared_->left[world(batch.receives[k].peer)] != 0)
        accuse_leaver(batch.receives[k].peer, batch.phase);
    for (std::size_t k = 0; k < batch.sends.size(); ++k)
      if (batch.send_numbers[k] != done && shared_->left[world(batch.sends[k].peer)] != 0)
        accuse_leaver(batch.sends[k].peer, batch.phase);
  }
  void accuse_leaver(int peer, Phase phase) {
    const auto who = static_cast<int>(world(peer));
    shared_->poison(
        who, "rank " + std::to_string(who) + " has finished its program, but others still wait for it");
    check(phase);
  }

  /// Poisons the group for a message of the wrong length: the sender is the culprit, unless the two are in different calls.
  TERSE_COLD void refuse_length(const Batch& batch, const Post& post, const Receive& receive) {
    const auto sender = static_cast<int>(member(*batch.channel, receive.peer));
    const bool same = post.phase == batch.phase && post.call.meets(batch.call);
    const std::string text =
        "rank " + std::to_string(sender) + " sent " + std::to_string(post.bytes) + " bytes in " +
        detail::place_of(post.phase, post.call) + " where rank " +
        std::to_string(member(*batch.channel, batch.rank)) + " expects " + std::to_string(receive.bytes) +
        (same ? "" : " in " + detail::place_of(batch.phase, batch.call) + "; " + detail::same_calls);
    shared_->poison(same ? sender : -1, text);
  }

  /// Receives what is there and settles what was taken. True if the lock was released on the way.
  bool advance(Batch& batch, std::unique_lock<std::mutex>& lock) {
    Shared::Channel& channel = *batch.channel;
    bool released = false;
    for (std::size_t k = 0; k < batch.receives.size(); ++k) {
      const std::uint64_t number = batch.receive_numbers[k];
      if (number == done) continue;
      const Receive& receive = batch.receives[k];
      Shared::Lane& from = channel.lane(receive.peer, batch.rank);
      Post& post = from[number];
      if (from.posted <= number || post.state != Post::State::posted) continue;
      const index_t bytes = post.bytes;
      if (receive.up_to ? bytes > receive.bytes : bytes != receive.bytes) {
        refuse_length(batch, post, receive);
        check(batch.phase);
      }
      post.state = Post::State::copying;
      lock.unlock();
      if (bytes > 0) std::memcpy(receive.data, post.data, static_cast<std::size_t>(bytes));
      lock.lock();
      released = true;
      post.state = Post::State::taken;
      shared_->wake[member(channel, receive.peer)].notify_all();
      batch.receive_numbers[k] = done;
      --batch.open;
    }
    for (std::size_t k = 0; k < batch.sends.size(); ++k) {
      if (batch.send_numbers[k] == done) continue;
      Post& post = channel.lane(batch.rank, batch.sends[k].peer)[batch.send_numbers[k]];
      if (post.state != Post::State::taken) continue;
      post.state = Post::State::free;
      batch.send_numbers[k] = done;
      --batch.open;
    }
    return released;
  }

  /// Moves along all batches that this thread has under way. True if the lock was released on the way.
  bool advance_all(std::unique_lock<std::mutex>& lock) {
    bool released = false;
    // By index: another thread of this rank may post while a copy runs without the lock.
    std::vector<Batch*>& batches = shared_->under_way[world(rank_)];
    for (std::size_t k = 0; k < batches.size(); ++k)
      if (batches[k]->poster == std::this_thread::get_id() && advance(*batches[k], lock)) released = true;
    return released;
  }
  /// This end may have been handed over by the thread that has posted.
  void want(Batch& wanted) {
    wanted.wanted = true;
    wanted.asked_at = Shared::Clock::now();
    wanted.wanted_in = detail::Call::current();
    for (const std::unique_ptr<Batch>& batch : batches_) batch->poster = std::this_thread::get_id();
  }
  void retire(Batch& batch) {
    std::erase(shared_->under_way[world(rank_)], &batch);
    batch.used = false;
  }

  /// Throws peer_error for a wait whose time is up, or returns when it ends after all.
  Shared::Clock::time_point patience(const Batch& batch, Deadline deadline) {
    const detail::ThreadBlame blame(*shared_, batch, deadline);
    if (blame.over()) shared_->poison(blame.culprit(), blame.reason());
    check(batch.phase);
    return blame.patience();
  }

  /// The owner of the buffers goes away: nobody may read them from here on, and nobody shall wait for them.
  void abandon(Batch& batch) {
    std::unique_lock lock(shared_->mutex);
    for (std::size_t k = 0; k < batch.sends.size(); ++k) {
      if (batch.send_numbers[k] == done) continue;
      Post& post = channel_->lane(rank_, batch.sends[k].peer)[batch.send_numbers[k]];
      wake().wait(lock, [&] { return post.state != Post::State::copying; });  // a copy always ends
      post.state = Post::State::free;
    }
    // While an exception is on its way, its own words will poison the group.
    if (batch.open > 0 && std::uncaught_exceptions() == 0)
      shared_->poison(
          static_cast<int>(world(rank_)),
          "rank " + std::to_string(rank_) + " abandoned a batch in phase '" + name(batch.phase) + "'");
    retire(batch);
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Shared::Channel> channel_;
  int rank_;
  std::uint64_t splits_ = 0;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace terse
