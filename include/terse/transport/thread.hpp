// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include "terse/core/view.hpp"
#include "terse/transport/concept.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse {

class ThreadGroup;

/// One rank's end of a ThreadGroup. Move-only; used by one thread at a time.
class Threads {
  using Shared = detail::ThreadShared;
  using Post = Shared::Post;
  /// What a ticket in flight remembers; recycled, so that steady traffic allocates nothing.
  struct Batch {
    std::span<const Send> sends;
    std::span<const Receive> receives;
    std::vector<std::uint64_t> send_numbers, receive_numbers;  // ~0: done
    std::size_t open = 0;
    Phase phase = Phase::setup;
    bool used = false;
  };

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

    /// Copies what has arrived; true once all is received and taken. Throws peer_error if the group is
    /// poisoned.
    bool ready() {
      if (batch_ == nullptr) return true;
      std::unique_lock lock(end_->shared_->mutex);
      end_->check(batch_->phase);
      end_->advance(*batch_, lock);
      if (batch_->open > 0) return false;
      finish();
      return true;
    }
    void wait() {
      if (batch_ != nullptr) wait(end_->shared_->deadline);
    }
    /// Throws peer_error when the batch isn't done after `deadline`; the culprit is the rank that has posted
    /// the fewest batches.
    void wait(std::chrono::milliseconds deadline) {
      if (batch_ == nullptr) return;
      const auto until = std::chrono::steady_clock::now() + deadline;
      std::unique_lock lock(end_->shared_->mutex);
      for (;;) {
        end_->check(batch_->phase);
        if (end_->advance(*batch_, lock)) continue;  // time has passed without the lock
        if (batch_->open == 0) return finish();
        end_->check_left(*batch_);
        if (end_->wake().wait_until(lock, until) == std::cv_status::timeout &&
            std::chrono::steady_clock::now() >= until)
          end_->blame(*batch_, deadline);
      }
    }

   private:
    friend class Threads;
    Ticket(Threads* end, Batch* batch) : end_(end), batch_(batch) {}
    void finish() {
      batch_->used = false;
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
    Batch& batch = unused_batch();
    batch.phase = phase;
    batch.sends = sends;
    batch.receives = receives;
    batch.send_numbers.clear();
    batch.receive_numbers.clear();
    for (const Send& send : sends) {
      Shared::Lane& out = lane(rank_, send.peer);
      if (out[out.posted].state != Post::State::free)
        throw usage_error("more than " + std::to_string(Shared::Lane::capacity) + " messages to rank " +
                              std::to_string(send.peer) + " are under way",
                          rank_);
      out[out.posted] = {Post::State::posted, send.data, send.bytes};
      batch.send_numbers.push_back(out.posted++);
      shared_->wake[world(send.peer)].notify_all();
    }
    for (const Receive& receive : receives)
      batch.receive_numbers.push_back(lane(receive.peer, rank_).expected++);
    batch.open = sends.size() + receives.size();
    batch.used = true;
    return Ticket(this, &batch);
  }

  Threads split(int color, int key) {
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
    // All ranks split in the same order, so the same number names the same split.
    const std::uint64_t number = (id_ * 1000003 + ++splits_) * 1000003;
    const std::lock_guard lock(shared_->mutex);
    auto& channel = shared_->channels[{number, color}];
    if (!channel) channel = make_channel(std::move(members));
    return Threads(shared_, channel.get(), rank, number + static_cast<std::uint64_t>(color));
  }

 private:
  friend class ThreadGroup;
  Threads(std::shared_ptr<Shared> shared, Shared::Channel* channel, int rank, std::uint64_t id)
      : shared_(std::move(shared)), channel_(channel), rank_(rank), id_(id) {
    // Room for two batches under way, which is what an exchange needs; more are made when asked for.
    for (int k = 0; k < 2; ++k) {
      Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
      batch.send_numbers.reserve(channel->members.size());
      batch.receive_numbers.reserve(channel->members.size());
    }
  }

  static std::unique_ptr<Shared::Channel> make_channel(std::vector<int> members) {
    auto channel = std::make_unique<Shared::Channel>();
    channel->lanes.resize(members.size() * members.size());
    channel->members = std::move(members);
    return channel;
  }

  std::size_t world(int rank) const {
    return static_cast<std::size_t>(channel_->members[static_cast<std::size_t>(rank)]);
  }
  Shared::Lane& lane(int from, int to) {
    if (from < 0 || to < 0 || from >= size() || to >= size() || from == to)
      throw usage_error(
          "no message can go from rank " + std::to_string(from) + " to rank " + std::to_string(to), rank_);
    return channel_
        ->lanes[static_cast<std::size_t>(from) * channel_->members.size() + static_cast<std::size_t>(to)];
  }
  std::condition_variable& wake() { return shared_->wake[world(rank_)]; }

  Batch& unused_batch() {
    for (const std::unique_ptr<Batch>& batch : batches_)
      if (!batch->used) return *batch;
    return *batches_.emplace_back(std::make_unique<Batch>());
  }

  void check(Phase phase) const {
    if (shared_->culprit < 0) return;
    throw peer_error("gave up in phase '" + std::string(name(phase)) + "': " + shared_->reason,
                     shared_->culprit, rank_);
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

  /// Receives what is there and settles what was taken. True if the lock was released on the way.
  bool advance(Batch& batch, std::unique_lock<std::mutex>& lock) {
    bool released = false;
    for (std::size_t k = 0; k < batch.receives.size(); ++k) {
      const std::uint64_t number = batch.receive_numbers[k];
      if (number == done) continue;
      const Receive& receive = batch.receives[k];
      Shared::Lane& from = lane(receive.peer, rank_);
      Post& post = from[number];
      if (from.posted <= number || post.state != Post::State::posted) continue;
      if (post.bytes != receive.bytes) {
        const std::string found = std::to_string(post.bytes), wanted = std::to_string(receive.bytes);
        shared_->poison(static_cast<int>(world(receive.peer)),
                        "rank " + std::to_string(receive.peer) + " sent " + found + " bytes in phase '" +
                            name(batch.phase) + "' where rank " + std::to_string(rank_) + " expects " +
                            wanted);
        check(batch.phase);
      }
      post.state = Post::State::copying;
      lock.unlock();
      if (receive.bytes > 0) std::memcpy(receive.data, post.data, static_cast<std::size_t>(receive.bytes));
      lock.lock();
      released = true;
      post.state = Post::State::taken;
      shared_->wake[world(receive.peer)].notify_all();
      batch.receive_numbers[k] = done;
      --batch.open;
    }
    for (std::size_t k = 0; k < batch.sends.size(); ++k) {
      if (batch.send_numbers[k] == done) continue;
      Post& post = lane(rank_, batch.sends[k].peer)[batch.send_numbers[k]];
      if (post.state != Post::State::taken) continue;
      post.state = Post::State::free;
      batch.send_numbers[k] = done;
      --batch.open;
    }
    return released;
  }

  /// Time is up. The culprit is the rank that has posted the fewest batches, if it is behind all that this
  /// batch waits for: then those wait for it, too. Otherwise it is the one among those that is furthest
  /// behind.
  [[noreturn]] void blame(const Batch& batch, std::chrono::milliseconds deadline) {
    const auto behind = [&](int a, int b) {
      return shared_->progress[static_cast<std::size_t>(a)] < shared_->progress[static_cast<std::size_t>(b)];
    };
    const int least = *std::min_element(channel_->members.begin(), channel_->members.end(), behind);
    int who = -1;
    const auto consider = [&](int peer) {
      const auto member = static_cast<int>(world(peer));
      if (who < 0 || behind(member, who)) who = member;
    };
    for (std::size_t k = 0; k < batch.receives.size(); ++k)
      if (batch.receive_numbers[k] != done) consider(batch.receives[k].peer);
    for (std::size_t k = 0; k < batch.sends.size(); ++k)
      if (batch.send_numbers[k] != done) consider(batch.sends[k].peer);
    if (who < 0 || behind(least, who)) who = least;
    shared_->poison(who, "rank " + std::to_string(who) + " is late: no sign of it for " +
                             std::to_string(deadline.count()) + " ms");
    check(batch.phase);
    std::terminate();  // not reached: check throws once the group is poisoned
  }

  /// The owner of the buffers goes away: nobody may read them from here on, and nobody shall wait for them.
  void abandon(Batch& batch) {
    std::unique_lock lock(shared_->mutex);
    for (std::size_t k = 0; k < batch.sends.size(); ++k) {
      if (batch.send_numbers[k] == done) continue;
      Post& post = lane(rank_, batch.sends[k].peer)[batch.send_numbers[k]];
      wake().wait(lock, [&] { return post.state != Post::State::copying; });  // a copy always ends
      post.state = Post::State::free;
    }
    // While an exception is on its way, its own words will poison the group.
    if (batch.open > 0 && std::uncaught_exceptions() == 0)
      shared_->poison(
          static_cast<int>(world(rank_)),
          "rank " + std::to_string(rank_) + " abandoned a batch in phase '" + name(batch.phase) + "'");
    batch.used = false;
  }

  static constexpr std::uint64_t done = ~std::uint64_t{0};

  std::shared_ptr<Shared> shared_;
  Shared::Channel* channel_;
  int rank_;
  std::uint64_t id_;
  std::uint64_t splits_ = 0;
  std::vector<std::unique_ptr<Batch>> batches_;
};

/// Ranks as threads of one process.
///
///     terse::ThreadGroup group(4);
///     group.run([](terse::Threads& transport) { ... });
///
/// A rank that throws poisons the group: the others leave their waits with peer_error that names it.
class ThreadGroup {
 public:
  /// Throws usage_error unless ranks >= 1. No wait lasts longer than `deadline`.
  explicit ThreadGroup(int ranks, std::chrono::milliseconds deadline = std::chrono::seconds(60))
      : ranks_(ranks), deadline_(deadline) {
    if (ranks < 1) throw usage_error("a group needs at least one rank, not " + std::to_string(ranks));
  }

  int size() const { return ranks_; }

  /// Runs program(transport) once for each rank, each in a thread of its own, and returns when all have
  /// returned. Throws what the culprit threw, or else the first peer_error.
  template <class Program>
  void run(Program program) {
    auto shared = std::make_shared<detail::ThreadShared>(ranks_, deadline_);
    std::vector<int> members;
    for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
    const auto channel = Threads::make_channel(std::move(members));
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks_));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks_; ++rank)
        threads.emplace_back([&, rank] {
          try {
            Threads transport(shared, channel.get(), rank, 1);
            program(transport);
            leave(*shared, rank, {});
          } catch (const std::exception& failure) {
            failures[static_cast<std::size_t>(rank)] = std::current_exception();
            leave(*shared, rank, failure.what());
          } catch (...) {
            failures[static_cast<std::size_t>(rank)] = std::current_exception();
            leave(*shared, rank, "unknown exception");
          }
        });
    }
    const int culprit = shared->culprit;
    if (culprit >= 0 && failures[static_cast<std::size_t>(culprit)])
      std::rethrow_exception(failures[static_cast<std::size_t>(culprit)]);
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

 private:
  static void leave(detail::ThreadShared& shared, int rank, const std::optional<std::string>& failure) {
    const std::lock_guard lock(shared.mutex);
    shared.left[static_cast<std::size_t>(rank)] = 1;
    if (failure) shared.poison(rank, "rank " + std::to_string(rank) + " threw: " + *failure);
    for (std::condition_variable& one : shared.wake) one.notify_all();
  }

  int ranks_;
  std::chrono::milliseconds deadline_;
};

}  // namespace terse
