// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/transport/mailbox.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse {

/// A Mailbox between threads, see Threads::mailbox: a slot for each rank, locked for as long as a packet is copied. Ranks
/// that have finished stay readable as long as anybody's end is there. A rank that has thrown ends the others with
/// peer_error at their next call.
class ThreadMailbox {
 public:
  ThreadMailbox(ThreadMailbox&&) = default;
  ThreadMailbox& operator=(ThreadMailbox&&) = default;

  void publish(std::span<const std::byte> packet) {
    detail::check_packet(packet.size(), slots_->bytes, rank_);
    check();
    Slot& slot = slots_->of[static_cast<std::size_t>(rank_)];
    const std::lock_guard lock(slot.mutex);
    if (!packet.empty()) std::memcpy(slot.packet.data(), packet.data(), packet.size());
    ++slot.version;
  }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    detail::check_publisher(peer, static_cast<int>(slots_->of.size()), rank_);
    detail::check_packet(place.size(), slots_->bytes, rank_);
    check();
    Slot& slot = slots_->of[static_cast<std::size_t>(peer)];
    const std::lock_guard lock(slot.mutex);
    if (slot.version > 0 && !place.empty()) std::memcpy(place.data(), slot.packet.data(), place.size());
    return slot.version;
  }

 private:
  friend class Threads;

  struct Slot {
    std::mutex mutex;
    buffer<std::byte> packet;
    std::uint64_t version = 0;
  };
  struct Slots {
    index_t bytes;
    std::vector<Slot> of;  // [rank]
    Slots(int ranks, index_t bytes_) : bytes(bytes_), of(static_cast<std::size_t>(ranks)) {
      for (Slot& slot : of) slot.packet = buffer<std::byte>(bytes);
    }
  };
  ThreadMailbox(std::shared_ptr<detail::ThreadShared> shared, std::shared_ptr<Slots> boxes, int rank,
                int world_rank)
      : shared_(std::move(shared)), slots_(std::move(boxes)), rank_(rank), world_rank_(world_rank) {}

  void check() const {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->reason.empty())
      throw peer_error("gave up at a mailbox: " + shared_->reason, shared_->culprit, world_rank_);
  }

  std::shared_ptr<detail::ThreadShared> shared_;
  std::shared_ptr<Slots> slots_;
  int rank_, world_rank_;
};

}  // namespace terse
