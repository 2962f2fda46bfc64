// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "terse/compressor/section_fault.hpp"
#include "terse/device/verbs/kernels.hpp"
#include "terse/topology/envelope.hpp"

// A device's results for the packets of a round, and the kernels that make them.

namespace terse {

namespace detail {

/// Maximum number of packets that one kernel stamps or accepts; they are in its argument.
inline constexpr int most_together = 16;

/// A device's results for the packets of a round.
struct Verdict {
  PacketFault fault;
  Findings findings[most_together];  // from the compressor's check of the current packets
  std::uint32_t unlikely = 0;  // a bit for each current packet: a scale exceeds those of all finite messages
  std::uint64_t damage = no_damage;
  std::int32_t sender = 0, from = -1;  // of the invalid packet, see Envelope
  std::uint16_t flags = PacketHeader::finite;
  bool closed = false;      // if set, the mean must not be consumed
  bool non_finite = false;  // the cause is a gradient that was not finite
  bool unreadable = false;  // a sender's packet couldn't be decoded with this rank's values
};

/// Returns the header that the packet must have in this step.
TERSE_HD inline PacketHeader header_now(const StepScalars* now, std::uint64_t bytes, std::uint64_t place,
                                        std::uint16_t flags = PacketHeader::finite) {
  PacketHeader header;
  header.flags = flags;
  header.step = now->step;
  header.length = bytes;
  header.check = check_with_flags(mix_hash(now->agreement, place), flags);
  return header;
}

TERSE_HD inline void take_note(Verdict& verdict, std::uint32_t* bad, std::uint16_t own) {
  if (bad == nullptr || *bad == 0) return;
  *bad = 0;
  verdict.flags = merged_flags(verdict.flags, own);
}

/// Kernel that records a bad value of this rank.
struct NoteKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  std::uint16_t own;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() == 0) verdict->flags = merged_flags(verdict->flags, own);
  }
};

/// Packets to be stamped.
struct StampedPackets {
  struct Packet {
    std::uint64_t bytes, place;
    std::byte* at;
  };
  int count;
  Packet packets[most_together];
};

/// A received packet with its `count` scales; if its message was finite, none exceeds `limit`.
struct ArrivedPacket {
  std::uint64_t least, most, place;
  const std::byte *at, *scales;
  index_t count;
  float limit;
  std::int32_t sender, from;

  /// Checks whether any of every `step`-th scale from `begin` on exceeds the limit. Reads all of them, so that no read
  /// waits for another.
  TERSE_HD bool unlikely(index_t begin, index_t end, index_t step) const {
    std::uint32_t beyond = 0;
    for (index_t k = begin; k < end; k += step)
      beyond |= static_cast<std::uint32_t>(!(magnitude(load_aligned<float>(scales + 4 * k)) <= limit));
    return beyond != 0;
  }
};
struct ArrivedPackets {
  int count;
  ArrivedPacket packets[most_together];
};

/// Kernel that checks many scales with many blocks, before VerdictKernel.
struct ScalesKernel {
  static constexpr bool cooperative = false;
  static constexpr index_t per_block = 16 * block_threads;
  struct Shared {};
  Verdict* verdict;
  ArrivedPackets arrived;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    index_t number = block.index();
    for (int k = 0; k < arrived.count; ++k) {
      const ArrivedPacket& packet = arrived.packets[k];
      const index_t blocks = blocks_for(packet.count, per_block), begin = number * per_block;
      number -= blocks;
      if (number >= 0) continue;
      const index_t end = packet.count - begin < per_block ? packet.count : begin + per_block;
      if (packet.unlikely(begin + block.thread(), end, block_threads)) atomic_or(&verdict->unlikely, 1U << k);
      return;
    }
  }
};

/// Kernel that updates a verdict between two phases, as far as requested: resets it, accepts packets, takes a note,
/// stamps packets, and closes it or not. One thread checks each received header; all threads together check a few
/// scales.
struct VerdictKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    PacketFault fault[most_together];
    std::uint16_t flags[most_together];
  };
  Verdict* verdict;
  const StepScalars* now;
  bool opens;  // and accepts nothing
  ArrivedPackets arrived;
  bool looks;          // at the scales, unless ScalesKernel has checked them
  std::uint32_t* bad;  // flag of a note
  std::uint16_t own, refusal;
  StampedPackets leaving;
  bool concludes, throws;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    if (const int k = block.thread(); k < arrived.count) {
      const ArrivedPacket& packet = arrived.packets[k];
      PacketHeader header;
      std::memcpy(&header, __builtin_assume_aligned(packet.at, 8), sizeof header);
      const PacketHeader right = header_now(now, packet.most, packet.place);
      shared.fault[k] = find_fault(header, {packet.least, packet.most, right.step, right.check});
      shared.flags[k] = header.flags;
    }
    if (looks)
      for (int k = 0; k < arrived.count; ++k)
        if (arrived.packets[k].unlikely(block.thread(), arrived.packets[k].count, block_threads))
          atomic_or(&verdict->unlikely, 1U << k);
    block.sync();
    if (block.thread() != 0) return;
    if (opens) *verdict = {};
    if (arrived.count > 0) accept(shared);
    take_note(*verdict, bad, own);
    if (leaving.count > 0) stamp();
    if (concludes) conclude();
  }

 private:
  TERSE_HD void accept(const Shared& shared) const {
    const std::uint32_t unlikely = verdict->unlikely;
    verdict->unlikely = 0;
    for (int k = 0; k < arrived.count; ++k) {
      PacketFault fault = shared.fault[k];
      const Findings findings = verdict->findings[k];
      verdict->findings[k] = {};
      const bool wrong = (unlikely >> k & 1) != 0 || findings.any();
      if (fault.field == PacketFault::none && wrong)
        fault = {PacketFault::content,
                 static_cast<std::uint64_t>(findings.any() ? findings.fault() : SectionFault::unlikely), 0};
      if (fault.field == PacketFault::none) {
        verdict->flags = merged_flags(verdict->flags, shared.flags[k]);
      } else if (verdict->fault.field == PacketFault::none) {
        verdict->fault = fault;
        verdict->sender = arrived.packets[k].sender;
        verdict->from = arrived.packets[k].from;
        verdict->flags = merged_flags(verdict->flags, refusal);
      }
    }
  }
  TERSE_HD void stamp() const {
    const std::uint16_t flags =
        verdict->damage == no_damage ? verdict->flags : merged_flags(verdict->flags, refusal);
    for (int k = 0; k < leaving.count; ++k) {
      const PacketHeader header = header_now(now, leaving.packets[k].bytes, leaving.packets[k].place, flags);
      std::memcpy(__builtin_assume_aligned(leaving.packets[k].at, 8), &header, sizeof header);
    }
  }
  TERSE_HD void conclude() const {
    const bool refused = (verdict->flags & PacketHeader::refused) != 0;
    verdict->non_finite = throws && !refused && verdict->flags != PacketHeader::finite;
    verdict->closed = verdict->non_finite || refused || verdict->fault.field != PacketFault::none ||
                      verdict->damage != no_damage;
  }
};

/// Kernel that adds the results of another verdict of the same step.
struct AbsorbKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  const Verdict* other;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    verdict->flags = merged_flags(verdict->flags, other->flags);
    if (other->damage < verdict->damage) verdict->damage = other->damage;
    if (verdict->fault.field != PacketFault::none || other->fault.field == PacketFault::none) return;
    verdict->fault = other->fault;
    verdict->sender = other->sender;
    verdict->from = other->from;
  }
};

struct CheckReadKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  Verdict* verdict;
  std::uint32_t* wrong;  // of each packet
  int count;
  std::int32_t senders[most_packets];

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    for (int p = 0; p < count; ++p) {
      if (wrong[p] == 0) continue;
      wrong[p] = 0;
      if (verdict->closed) continue;
      verdict->closed = verdict->unreadable = true;
      verdict->sender = senders[p];
    }
  }
};

/// A functor that does nothing after an error.
template <class F>
struct Gated {
  F f;
  const Verdict* verdict;
  bool open = false;

  using StreamsOf = Gated;
  TERSE_HD auto streams() requires NamesStreams<F> { return f.streams(); }
  TERSE_HD bool idle() const { return !open; }
  TERSE_HD void enter(const Piece& piece) {
    open = !verdict->closed;
    terse::enter(f, piece);
  }
  template <class... Sum>
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    if (open) f(piece, i, keep, sum...);
  }
};

}  // namespace detail

}  // namespace terse
