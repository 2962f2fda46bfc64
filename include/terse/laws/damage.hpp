// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "terse/core/packet.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/forwarding.hpp"
#include "terse/transport/threads.hpp"

// Damage of a packet on its way, for the laws of topologies.

namespace terse::laws::detail {

/// Damage of the packet at the beginning of one of a rank's messages, on its way to its receiver.
class Damage {
 public:
  enum Part { header, last_values };
  /// No damage.
  Damage() = default;
  /// `message` counts the messages of packets that rank `sender` sends.
  Damage(Part part, int sender, int message) : part_(part), sender_(sender), left_(message) {}

  /// Returns true if the rank has sent so many messages; then the phase and the receiver of the damaged one are
  /// known.
  bool done() const { return left_ < 0; }
  Phase phase() const { return phase_; }
  int receiver() const { return receiver_; }
  /// Called by each rank before its round. Returns when all ranks have called it, or after 5 seconds: a rank that left early would
  /// end the construction of others.
  void meet(int ranks) {
    std::unique_lock lock(mutex_);
    ++present_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return present_ == ranks; });
  }
  /// Called by each rank after its round. Returns when the receiver has ended, or after 5 seconds: a rank that left after the
  /// receiver's error would end the receiver's own round.
  void end_of(int rank) {
    std::unique_lock lock(mutex_);
    ended_.push_back(rank);
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(5), [&] {
      return !done() || std::find(ended_.begin(), ended_.end(), receiver()) != ended_.end();
    });
  }

  /// Returns the messages that `rank` sends in place of `sends`, in a channel whose ranks have these names. The packet is copied,
  /// so that the sender's packet is unchanged.
  std::span<const Send> on(int rank, std::span<const Send> sends, const std::vector<int>& names,
                           Phase phase) {
    if (rank != sender_) return sends;
    const std::lock_guard lock(mutex_);
    for (std::size_t k = 0; k < sends.size() && !done(); ++k) {
      if (!is_packet(sends[k]) || left_-- > 0) continue;
      receiver_ = names[static_cast<std::size_t>(sends[k].peer)];
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

  Part part_ = header;
  int sender_ = -1, left_ = 0;
  Phase phase_{};
  int receiver_ = 0;
  std::vector<Send> sends_;
  std::vector<std::byte> packet_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
  std::vector<int> ended_;  // ranks
};

/// Threads, with one rank's damage. It is made on all ranks together; `name` is this rank's name among those of the
/// damage.
class DamagedThreads : public Forwarding<DamagedThreads, Threads> {
 public:
  DamagedThreads(Threads inner, int name, Damage& damage)
      : Forwarding(std::move(inner)),
        name_(name),
        damage_(&damage),
        names_(terse::all_gather(this->inner(), name)) {}
  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    return inner().exchange(damage_->on(name_, sends, names_, phase), receives, phase);
  }
  DamagedThreads around(Threads other) const { return {std::move(other), name_, *damage_}; }

 private:
  int name_;
  Damage* damage_;
  std::vector<int> names_;  // of the channel's ranks
};

}  // namespace terse::laws::detail
