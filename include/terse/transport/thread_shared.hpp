// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "terse/core/layout.hpp"

namespace terse {

namespace detail {

/// What all threads of a group share. Everything in it is guarded by `mutex`; bytes are copied outside of it,
/// by the receiver, straight from the sender's buffer.
struct ThreadShared {
  /// A message that its sender has posted and its receiver will copy.
  struct Post {
    enum class State { free, posted, copying, taken } state = State::free;
    const std::byte* data = nullptr;
    index_t bytes = 0;
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
    std::vector<int> members;  // world ranks
    std::vector<Lane> lanes;   // [from * size + to]
  };

  ThreadShared(int ranks, std::chrono::milliseconds patience)
      : deadline(patience),
        wake(static_cast<std::size_t>(ranks)),
        progress(static_cast<std::size_t>(ranks)),
        left(static_cast<std::size_t>(ranks)) {}

  std::chrono::milliseconds deadline;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;  // per world rank
  std::vector<std::uint64_t> progress;  // batches posted; the smallest is the culprit when a wait times out
  std::vector<char> left;               // this rank's program has returned
  std::map<std::tuple<std::uint64_t, int>, std::unique_ptr<Channel>> channels;  // by parent's split and color
  int culprit = -1;                                                             // >= 0: the group is poisoned
  std::string reason;

  void poison(int who, const std::string& why) {
    if (culprit >= 0) return;
    culprit = who;
    reason = why;
    for (std::condition_variable& one : wake) one.notify_all();
  }
};

}  // namespace detail

}  // namespace terse
