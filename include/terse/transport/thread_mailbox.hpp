// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "terse/core/view.hpp"
#include "terse/transport/mailbox.hpp"
#include "terse/transport/thread_shared.hpp"

namespace terse {

class Threads;

namespace detail {

/// A Mailbox between threads, see Threads::mailbox: a slot for each rank, locked while a packet is copied. Packets of ranks
/// that have finished can be read as long as any rank's end exists. If a rank has thrown, the next call of each other rank
/// throws peer_error.
class ThreadMailbox {
 public:
  ThreadMailbox(ThreadMailbox&&) = default;
  ThreadMailbox& operator=(ThreadMailbox&&) = default;

  void publish(std::span<const std::byte> packet);
  std::uint64_t fetch(int peer, std::span<std::byte> place);

 private:
  friend class terse::Threads;

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
  ThreadMailbox(std::shared_ptr<ThreadShared> shared, std::shared_ptr<Slots> boxes, int rank, int world_rank)
      : shared_(std::move(shared)), slots_(std::move(boxes)), rank_(rank), world_rank_(world_rank) {}

  void check() const;

  std::shared_ptr<ThreadShared> shared_;
  std::shared_ptr<Slots> slots_;
  int rank_, world_rank_;
};

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/thread_mailbox.ipp"
#endif
