// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "terse/codec.hpp"
#include "terse/compressor/packed.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/packet.hpp"
#include "terse/core/step_scalars.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

namespace detail {

/// Returns the flags of packets from this rank after its message was not finite.
constexpr std::uint16_t flags_of(int rank) {
  return static_cast<std::uint16_t>(std::min<int>(rank + 1, PacketHeader::refused - 1));
}
/// Returns the flags of packets from this rank after it has refused a packet.
constexpr std::uint16_t refusal_of(int rank) {
  return static_cast<std::uint16_t>(PacketHeader::refused | flags_of(rank));
}
constexpr bool is_refusal(std::uint16_t flags) { return (flags & PacketHeader::refused) != 0; }

/// Merges flags: a refusal has priority; of two equal kinds the lower rank.
TERSE_HD constexpr std::uint16_t merged_flags(std::uint16_t a, std::uint16_t b) {
  if (a == PacketHeader::finite) return b;
  if (b == PacketHeader::finite) return a;
  if (((a ^ b) & PacketHeader::refused) != 0) return a > b ? a : b;
  return a < b ? a : b;
}

/// The common part of all packet headers of a round. `now`, in the executor's memory, contains equal values for recorded
/// steps.
struct RoundHeader {
  std::uint64_t step = 0, check = 0;
  const StepScalars* now = nullptr;
  bool checks_payload = false;
};

/// Returns a number that identifies a packet within its round.
constexpr std::uint64_t place_of(Phase phase, int chunk, int sender) {
  return static_cast<std::uint64_t>(phase) << 48 | static_cast<std::uint64_t>(chunk) << 24 |
         static_cast<std::uint64_t>(sender);
}
/// The mark of a forwarded packet in its origin.
inline constexpr std::uint32_t handed_on = std::uint32_t{1} << 31;
/// Returns the number by which verbs identify a packet, see Packets::damage. It identifies one rank: for a packet that `from`
/// has forwarded for another sender, this rank is `from`.
constexpr std::uint32_t origin_of(Phase phase, int sender, int from = -1) {
  const bool direct = from < 0 || from == sender;
  return (direct ? 0 : handed_on) | static_cast<std::uint32_t>(phase) << 24 |
         static_cast<std::uint32_t>(direct ? sender : from);
}
/// Returns the name of the rank in flags.
TERSE_COLD std::string rank_in(std::uint16_t flags);
/// Returns a packet's check with a payload checksum, which replaces half of the check.
inline std::uint64_t check_with_payload(std::uint64_t check, const std::byte* packet, std::uint64_t bytes,
                                        std::uint16_t flags) {
  constexpr auto header = sizeof(PacketHeader);
  const std::uint64_t sum = mix_hash(hash_bytes(packet + header, bytes - header), flags);
  return (check & 0xFFFFFFFF00000000) | (sum & 0xFFFFFFFF);
}

[[noreturn]] TERSE_COLD void throw_refused(std::uint16_t flags, int rank, std::uint64_t step);
[[noreturn]] TERSE_COLD void throw_non_finite(std::uint16_t flags, int rank, std::uint64_t step);

/// Throws wire_error for a packet from `sender` that can't be decoded because this rank's parameters are too far away.
[[noreturn]] TERSE_COLD void throw_unreadable(int sender, int rank, std::uint64_t step);

[[noreturn]] TERSE_COLD void throw_damaged(const std::string& packet, const char* sign, int rank,
                                           std::uint64_t step);
[[noreturn]] TERSE_COLD void throw_damage(std::uint64_t origin, int rank, std::uint64_t step);
[[noreturn]] TERSE_COLD void throw_payload(std::uint64_t place, int sender, int from, int rank,
                                           std::uint64_t step);

}  // namespace detail

/// The headers of a round's packets: it stamps outgoing packets and checks received ones in place. If a rank's message was not
/// finite, each later packet names that rank.
///
///     open(executor, round, rank)                         begins a round
///     note(executor, codec)                               records it if the encoded values were not finite
///     note(executor)                                      records that something else of this rank was not finite
///     stamp(executor, bytes, place, packet)               writes the header, its flags included
///     accept(executor, codec, portion, packet, least, most, place, sender, from)    checks a packet of `sender`, which `from`, if
///                                                         not -1, has forwarded; takes over its flags
///     together(executor, act)                             calls act(); on a device its stamps are one kernel, and its accepts wait
///                                                         for the next one, while packets must stay as they are. No packet
///                                                         may be sent or received in between
///     verify(executor)                                    checks the accepted packets, whose memory may be used again after it
///     absorb(executor, other)                             takes over the errors of another envelope of this step
///     arrived(executor, throws)                           all packets are here; with `throws` flags are an error
///     check_read(executor, wrong, sender)                 reports a packet whose decoding has set `wrong`; after
///                                                         `arrived`, in the order of packets. Resets `wrong` to 0
///     damage()                                            for verbs that read accepted packets, see Packets::damage
///     gated(f)                                            f as consumer, which does nothing after an error
///     settle(executor, step)                              throws the error
///     conclude(executor, step)                            throws errors other than flags, and returns the flags
///
/// On the host, errors are thrown when they are found; damage is thrown by the next call of stamp, arrived, settle or conclude.
/// A device only records errors, so that nothing waits for the device before `settle` does, once in a round. Decoding is safe
/// for any packet, and after an error the gate keeps its values from consumers. Packets that the device stamps after the error
/// say so in their flags, and their receivers refuse them.
template <Executor E>
class Envelope {
  static_assert(std::is_same_v<typename E::memory, memory::host>,
                "terse: rounds on this executor need terse/device.hpp; terse/cuda.cuh brings it");

 public:
  std::uint16_t flags = PacketHeader::finite;

  void open(E, const detail::RoundHeader& round, int rank) {
    round_ = round;
    rank_ = rank;
    flags = PacketHeader::finite;
    damage_ = detail::no_damage;
  }
  template <class Codec>
  void note(E, Codec& codec) {
    if (codec.take_bad()) flags = detail::merged_flags(flags, detail::flags_of(rank_));
  }
  void note(E) { flags = detail::merged_flags(flags, detail::flags_of(rank_)); }
  void stamp(E, std::uint64_t bytes, std::uint64_t place, std::byte* packet) const {
    refuse_damage();
    PacketHeader header;
    header.flags = flags;
    header.step = round_.step;
    header.length = bytes;
    const std::uint64_t check = mix_hash(round_.check, place);
    header.check = round_.checks_payload ? detail::check_with_payload(check, packet, bytes, flags)
                                         : detail::check_with_flags(check, flags);
    std::memcpy(packet, &header, sizeof header);
  }
  template <class Codec>
  void accept(E, Codec& codec, const Portion& portion, const std::byte* packet, std::uint64_t least,
              std::uint64_t most, std::uint64_t place, int sender, int from = -1) {
    const PacketHeader header = read(packet, least, most, place, sender, from);
    if constexpr (!Codec::lossless) {
      const index_t section = portion.variable ? static_cast<index_t>(header.length) - portion.section_at
                                               : portion.dense_at - portion.section_at;
      if (const char* fault =
              codec.compressor().fault(portion.compressed, packet + portion.section_at, section))
        detail::refuse({detail::PacketFault::content}, fault, round_.step, sender, rank_, from);
    }
    flags = detail::merged_flags(flags, header.flags);
  }
  template <class Act>
  void together(E, const Act& act) {
    act();
  }
  void verify(E) {}
  /// Takes over the errors of another envelope of this step.
  void absorb(E, const Envelope& other) {
    flags = detail::merged_flags(flags, other.flags);
    damage_ = std::min(damage_, other.damage_);
  }
  void arrived(E, bool throws) const {
    refuse_damage();
    if (detail::is_refusal(flags)) detail::throw_refused(flags, rank_, round_.step);
    if (throws && flags != PacketHeader::finite) detail::throw_non_finite(flags, rank_, round_.step);
  }
  void check_read(E, std::uint32_t& wrong, int sender) const {
    if (std::exchange(wrong, 0U) != 0) detail::throw_unreadable(sender, rank_, round_.step);
  }
  template <class F>
  F gated(const F& f) const {
    return f;
  }
  std::uint64_t* damage() { return &damage_; }
  void settle(E, std::uint64_t) const { refuse_damage(); }
  std::uint16_t conclude(E, std::uint64_t) const {
    refuse_damage();
    return flags;
  }

 private:
  PacketHeader read(const std::byte* packet, std::uint64_t least, std::uint64_t most, std::uint64_t place,
                    int sender, int from) const {
    const std::uint64_t check = mix_hash(round_.check, place);
    if (!round_.checks_payload)
      return detail::read_header(packet, {least, most, round_.step, check}, sender, rank_, from);
    PacketHeader header;
    std::memcpy(&header, packet, sizeof header);
    PacketHeader plain = header;
    plain.flags = PacketHeader::finite;
    plain.check = check >> 32 == header.check >> 32 ? check : header.check;
    detail::refuse(detail::find_fault(plain, {least, most, round_.step, check}), "", round_.step, sender,
                   rank_, from);
    if (header.check != detail::check_with_payload(check, packet, header.length, header.flags))
      detail::throw_payload(place, sender, from, rank_, round_.step);
    return header;
  }
  void refuse_damage() const {
    if (damage_ != detail::no_damage) detail::throw_damage(damage_, rank_, round_.step);
  }

  detail::RoundHeader round_;
  std::uint64_t damage_ = detail::no_damage;
  int rank_ = 0;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/topology/envelope.ipp"
#endif
