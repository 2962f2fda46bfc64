// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "terse/core/packet.hpp"
#include "terse/transport/forwarding.hpp"
#include "terse/transport/threads.hpp"

// Damage of a packet on its way, for the laws of topologies.

namespace terse::laws::detail {

/// Damage of the packet that begins one of a rank's messages, on its way to its receiver.
class Damage {
 public:
  enum Part { header, last_values };
  /// `message` counts the messages of packets that rank `sender` sends.
  Damage(Part part, int sender, int message) : part_(part), sender_(sender), left_(message) {}

  int sender() const { return sender_; }
  /// Returns true if the rank has sent so many messages; then the damaged one's phase and receiver are known.
  bool done() const { return left_ < 0; }
  Phase phase() const { return phase_; }
  int receiver() const { return sends_[at_].peer; }

  /// Returns the messages to send instead of `sends`. The packet is copied, so that the sender keeps its own.
  std::span<const Send> on(std::span<const Send> sends, Phase phase) {
    for (std::size_t k = 0; k < sends.size() && !done(); ++k) {
      if (!is_packet(sends[k]) || left_-- > 0) continue;
      at_ = k;
      phase_ = phase;
      sends_.assign(sends.begin(), sends.end());
      packet_.assign(sends[k].data, sends[k].data + sends[k].bytes);
      sends_[k].data = packet_.data();
      if (part_ == header)
        packet_[offsetof(PacketHeader, step)] ^= std::byte{0x10};
      else
        for (std::size_t words = 1; words <= 2; ++words)
          std::memcpy(packet_.data() + packet_.size() - 4 * words, &not_a_number, sizeof not_a_number);
      return sends_;
    }
    return sends;
  }

 private:
  static constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
  static bool is_packet(const Send& send) {
    PacketHeader header;
    if (send.bytes < static_cast<index_t>(sizeof header)) return false;
    std::memcpy(&header, send.data, sizeof header);
    return header.magic == PacketHeader::expected_magic;
  }

  Part part_;
  int sender_, left_;
  Phase phase_{};
  std::size_t at_ = 0;
  std::vector<Send> sends_;
  std::vector<std::byte> packet_;
};

/// Threads, with one rank's damage.
class DamagedThreads : public Forwarding<DamagedThreads, Threads> {
 public:
  DamagedThreads(Threads inner, Damage* damage) : Forwarding(std::move(inner)), damage_(damage) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    return inner().exchange(damage_ == nullptr ? sends : damage_->on(sends, phase), receives, phase);
  }
  DamagedThreads around(Threads other) const { return {std::move(other), damage_}; }

 private:
  Damage* damage_;
};

}  // namespace terse::laws::detail
