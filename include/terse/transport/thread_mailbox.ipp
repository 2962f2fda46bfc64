// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "terse/core/separate.hpp"
#include "terse/transport/thread_mailbox.hpp"

namespace terse::detail {

TERSE_CORE void ThreadMailbox::publish(std::span<const std::byte> packet) {
  check_packet(packet.size(), slots_->bytes, rank_);
  check();
  Slot& slot = slots_->of[static_cast<std::size_t>(rank_)];
  const std::lock_guard lock(slot.mutex);
  if (!packet.empty()) std::memcpy(slot.packet.data(), packet.data(), packet.size());
  ++slot.version;
}

TERSE_CORE std::uint64_t ThreadMailbox::fetch(int peer, std::span<std::byte> place) {
  check_publisher(peer, static_cast<int>(slots_->of.size()), rank_);
  check_packet(place.size(), slots_->bytes, rank_);
  check();
  Slot& slot = slots_->of[static_cast<std::size_t>(peer)];
  const std::lock_guard lock(slot.mutex);
  if (slot.version > 0 && !place.empty()) std::memcpy(place.data(), slot.packet.data(), place.size());
  return slot.version;
}

TERSE_CORE void ThreadMailbox::check() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->reason.empty())
    throw peer_error("gave up at a mailbox: " + shared_->reason, shared_->culprit, world_rank_);
}

}  // namespace terse::detail
