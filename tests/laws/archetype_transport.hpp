// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "terse/transport/concept.hpp"

// A transport with nothing but what its contract promises: see archetype_rules.hpp.

namespace archetype {

using terse::index_t;

/// Messages that wait for their receivers, in the order in which they were sent.
struct Post {
  using Lane = std::tuple<std::uint64_t, int, int>;  // channel, from, to
  std::mutex mutex;
  std::condition_variable wake;
  std::map<Lane, std::map<std::uint64_t, std::vector<std::byte>>> messages;  // by number
  std::chrono::milliseconds deadline;
};

/// Ranks that are threads, whose messages are copied when they are sent.
class Transport {
 public:
#if !defined(OMIT_TRANSPORT_MEMORY)
  using memory = terse::memory::host;
#endif

  class Ticket {
   public:
    Ticket() = default;
#if !defined(OMIT_TRANSPORT_MOVE_ONLY)
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&&) = default;
#endif

#if !defined(OMIT_TRANSPORT_READY)
    bool ready() {
      const std::lock_guard lock(post_->mutex);
      return take();
    }
#endif
#if !defined(OMIT_TRANSPORT_WAIT)
    void wait() { wait_for(post_->deadline); }
#endif
#if !defined(OMIT_TRANSPORT_WAIT_DEADLINE)
    void wait(std::chrono::milliseconds deadline) { wait_for(deadline); }
#endif

   private:
    friend class Transport;
    void wait_for(std::chrono::milliseconds deadline) {
      std::unique_lock lock(post_->mutex);
      if (!post_->wake.wait_for(lock, deadline, [&] { return take(); }))
        throw terse::peer_error("rank " + std::to_string(std::get<1>(open_.front().lane)) + " is late",
                                std::get<1>(open_.front().lane), std::get<2>(open_.front().lane));
    }
    /// What has arrived; true once all has. Under the lock.
    bool take() {
      std::erase_if(open_, [&](const Open& open) {
        auto& lane = post_->messages[open.lane];
        const auto found = lane.find(open.number);
        if (found == lane.end()) return false;
        const auto bytes = static_cast<index_t>(found->second.size());
        if (open.receive.up_to ? bytes > open.receive.bytes : bytes != open.receive.bytes)
          throw terse::peer_error("another length", std::get<1>(open.lane), std::get<2>(open.lane));
        if (bytes > 0) std::memcpy(open.receive.data, found->second.data(), found->second.size());
        lane.erase(found);
        return true;
      });
      return open_.empty();
    }
    struct Open {
      Post::Lane lane;
      std::uint64_t number;
      terse::Receive receive;
    };
    std::shared_ptr<Post> post_;
    std::vector<Open> open_;
  };

  Transport(std::shared_ptr<Post> post, std::uint64_t channel, int rank, int size)
      : post_(std::move(post)), channel_(channel), rank_(rank), size_(size) {}
  Transport(Transport&&) = default;
  Transport& operator=(Transport&&) = default;

#if !defined(OMIT_TRANSPORT_RANK)
  int rank() const { return rank_; }
#endif
#if !defined(OMIT_TRANSPORT_SIZE)
  int size() const { return size_; }
#endif
#if !defined(OMIT_TRANSPORT_EXCHANGE)
  Ticket exchange(std::span<const terse::Send> sends, std::span<const terse::Receive> receives,
                  terse::Phase) {
    return start(sends, receives);
  }
#endif
#if !defined(OMIT_TRANSPORT_SPLIT)
  Transport split(int color, int key) {
    struct Wish {
      int color, key;
    };
    std::vector<Wish> wishes(static_cast<std::size_t>(size_));
    const Wish mine{color, key};
    std::vector<terse::Send> sends;
    std::vector<terse::Receive> receives;
    for (int peer = 0; peer < size_; ++peer) {
      auto* const place = reinterpret_cast<std::byte*>(&wishes[static_cast<std::size_t>(peer)]);
      if (peer == rank_) {
        std::memcpy(place, &mine, sizeof mine);
        continue;
      }
      sends.push_back({peer, reinterpret_cast<const std::byte*>(&mine), sizeof mine});
      receives.push_back({peer, place, sizeof mine});
    }
    start(sends, receives).wait_for(post_->deadline);
    int place = 0, members = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const Wish& wish = wishes[static_cast<std::size_t>(peer)];
      if (wish.color != color) continue;
      ++members;
      if (wish.key < key || (wish.key == key && peer < rank_)) ++place;
    }
    const std::uint64_t channel =
        (channel_ * 1000 + ++splits_) * 1000 + static_cast<std::uint64_t>(color) + 1;
    return {post_, channel, place, members};
  }
#endif

 private:
  Ticket start(std::span<const terse::Send> sends, std::span<const terse::Receive> receives) {
    Ticket ticket;
    ticket.post_ = post_;
    {
      const std::lock_guard lock(post_->mutex);
      for (const terse::Send& send : sends)
        post_->messages[{channel_, rank_, send.peer}].emplace(
            sent_[send.peer]++, std::vector<std::byte>(send.data, send.data + send.bytes));
    }
    post_->wake.notify_all();
    for (const terse::Receive& receive : receives)
      ticket.open_.push_back({{channel_, receive.peer, rank_}, received_[receive.peer]++, receive});
    return ticket;
  }

  std::shared_ptr<Post> post_;
  std::uint64_t channel_;
  int rank_, size_;
  std::uint64_t splits_ = 0;
  std::map<int, std::uint64_t> sent_, received_;
};

/// Runs program(transport) for each rank, in a thread of its own; throws what the first of them threw.
template <class Program>
void run(int ranks, const Program& program, std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  const auto post = std::make_shared<Post>();
  post->deadline = deadline;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          Transport transport(post, 0, rank, ranks);
          program(transport);
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace archetype
