// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "terse/transport/call.hpp"

namespace terse {

namespace detail {

/// State that all threads of a group share, guarded by `mutex`. Bytes are copied without the lock, by the receiver,
/// directly from the sender's buffer.
struct ThreadShared {
  using Clock = std::chrono::steady_clock;

  /// A message that its sender has posted and its receiver will copy.
  struct Post {
    enum class State { free, posted, copying, taken } state = State::free;
    const std::byte* data = nullptr;
    index_t bytes = 0;
    Phase phase = Phase::setup;
    CallName call{};  // in which it was posted
  };
  /// Messages from one rank of a channel to another, first in, first out.
  struct Lane {
    static constexpr std::uint64_t capacity = 8;
    std::array<Post, capacity> posts;
    std::uint64_t posted = 0;    // by the sender
    std::uint64_t expected = 0;  // by the receiver
    Post& operator[](std::uint64_t number) { return posts[number % capacity]; }
  };
  struct Channel {
    Channel(std::uint64_t id_, std::vector<int> members_)
        : id(id_), members(std::move(members_)), lanes(members.size() * members.size()) {}
    std::uint64_t id;
    std::vector<int> members;  // world ranks
    std::vector<Lane> lanes;   // [from * size + to]
    Lane& lane(int from, int to) {
      return lanes[static_cast<std::size_t>(from) * members.size() + static_cast<std::size_t>(to)];
    }
  };
  /// State of a batch in flight; recycled at its end, so that steady traffic allocates nothing.
  struct Batch {
    static constexpr std::uint64_t done = ~std::uint64_t{0};

    Channel* channel = nullptr;
    int rank = 0;
    std::span<const Send> sends;
    std::span<const Receive> receives;
    std::vector<std::uint64_t> send_numbers, receive_numbers;  // done: settled
    std::size_t open = 0;                                      // messages that are not settled
    Phase phase = Phase::setup;
    CallName call, wanted_in;           // calls in which it was posted, and in which it is wanted
    Clock::time_point since, asked_at;  // the first and the last ready() that found it unfinished
    bool asked = false;                 // by ready()
    bool waited = false;                // by wait()
    bool wanted = false;                // by ready() or wait(): a batch that was only posted delays no rank
    std::thread::id poster;
    bool used = false;
  };

  /// Threads that wait to become ranks, of all groups in which the ranks of a ThreadGroup go on.
  struct Door {
    /// A thread that waits; once it is admitted, its place in a group.
    struct Guest {
      std::shared_ptr<ThreadShared> shared;
      std::shared_ptr<Channel> channel;
      int rank = -1;
      bool refused = false;
    };
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Guest*> waiting;
    bool closed = false;  // the group has ended
    void open();
    /// Refuses all who wait and who come later, since the group has ended.
    void close();
  };

  ThreadShared(int ranks, std::chrono::milliseconds deadline_, std::shared_ptr<Door> door_);

  std::chrono::milliseconds deadline;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;  // per world rank
  std::vector<std::uint64_t> progress;        // batches posted
  std::vector<Clock::time_point> here;  // last report of work, by this rank or one that it has heard from
  std::vector<std::vector<Batch*>> under_way;  // per world rank: a wait advances all batches of its thread
  std::vector<char> left;                      // this rank's program has returned
  /// A channel that some of its ranks have not taken yet.
  struct Making {
    std::shared_ptr<Channel> channel;
    std::size_t takers = 0;  // ranks that have not taken it
  };
  // By the parent's id, the number of its split, and color: all ranks split in one order.
  std::map<std::tuple<std::uint64_t, std::uint64_t, int>, Making> making;
  std::uint64_t made = 0;  // channels; ids are never reused
  std::string reason;      // not empty: the group is poisoned
  int culprit = -1;        // -1: no single rank
  std::shared_ptr<Door> door;
  // Of Threads::regroup and admit:
  std::vector<char> asks;              // per world rank: it has asked to go on after a loss
  std::uint64_t refused = 0;           // times that ranks have asked and none was lost
  std::size_t guests = 0;              // ranks, the last ones, that have joined with this group
  std::vector<char> moved;             // per world rank: it has gone on in another group
  std::vector<std::uint64_t> admits;   // per world rank: its calls of admit
  std::uint64_t admitted = 0;          // calls of admit whose outcome is known
  std::vector<int> before;             // by rank in `next`: its world rank here, or -1 for one that joins
  std::shared_ptr<ThreadShared> next;  // once its ranks are known
  std::shared_ptr<Channel> next_channel;

  /// Returns this rank's share of the channel of a split. When all ranks have theirs, the channel lives as long as any of
  /// them.
  std::shared_ptr<Channel> take(std::uint64_t parent, std::uint64_t split, int color,
                                std::vector<int> members);

  /// Extends the deadlines of waits that need `to`, which may itself have waited for `from`, as far as those that need `from`.
  /// Called for each message at its posting and, in the other direction, when it is taken.
  void pass_sign(std::size_t from, std::size_t to) { here[to] = std::max(here[to], here[from]); }

  void poison(int who, const std::string& why);

  /// Waits until the ranks that have asked to go on after a loss have a group; throws usage_error if no rank is lost.
  void regroup(std::size_t me, std::unique_lock<std::mutex>& lock);
  /// Notes that a rank asks to go on after a loss; refuses if all have.
  void ask(std::size_t rank);
  /// Decides for ranks that have asked in vain that a rank is lost: makes the group without guests if these alone have not asked;
  /// otherwise refuses.
  void settle_without_loss();
  void refuse();
  /// Checks whether all ranks that may go on have asked to: all but those whose programs have ended, and the culprit.
  bool all_ask() const;
  /// Makes the group of the ranks that have asked.
  void go_on();
  /// Makes the group of all ranks and those that wait at the door, if any do; poisons this one if a rank's program has ended.
  void let_in();
  /// Moves the ranks of `before` to a group of their own.
  void move();
};

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/thread_shared.ipp"
#endif
