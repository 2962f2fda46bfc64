// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"

namespace terse {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian, as the machines are");

/// The first 32 bytes of every packet. The other parts follow, each aligned to 8 bytes. They are the compressor's
/// section (scales in piece order, then the codes of each piece), the elements of dense pieces as fp32, and a float
/// of the recipe. A section whose size depends on the data comes last.
struct PacketHeader {
  static constexpr std::uint32_t expected_magic = 0x53525434;  // "4TRS" in memory
  static constexpr std::uint16_t wire_version = 3;
  /// Values of `flags`: 0 if all messages were finite, otherwise 1 + the first rank whose message was not (saturating).
  /// With the highest bit set: 1 + the rank that has refused a packet on which this one depends.
  static constexpr std::uint16_t finite = 0, refused = 0x8000;

  std::uint32_t magic = expected_magic;  ///< mark of terse's packets
  std::uint16_t version = wire_version;  ///< version of the format
  std::uint16_t flags = finite;          ///< rank whose message was not finite, if any
  std::uint64_t step = 0;                ///< counts from 1
  std::uint64_t length = 0;              ///< bytes of the packet, this header included
  std::uint64_t check =
      0;  ///< hash of the exchange's fingerprint, the step's hyper-parameters, phase, chunk, sender and flags
};
static_assert(sizeof(PacketHeader) == 32);

namespace detail {

/// Returns the check of a packet with flags, computed from the check of one without. It protects the flags, since a
/// damaged bit could name another rank.
TERSE_HD constexpr std::uint64_t check_with_flags(std::uint64_t check, std::uint16_t flags) {
  return flags == PacketHeader::finite ? check : mix_hash(check, flags);
}

/// The required values of a header; the packet has `least` to `most` bytes.
struct ExpectedHeader {
  std::uint64_t least = 0;  ///< least bytes of the packet
  std::uint64_t most = 0;   ///< maximum bytes of the packet; above `least` if the length varies
  std::uint64_t step = 0;   ///< PacketHeader::step
  std::uint64_t check = 0;  ///< PacketHeader::check without flags
};

/// The first field of a packet that is wrong.
struct PacketFault {
  /// The fields of a header in the order of their checks; `content` is the part after the header.
  enum Field : std::uint32_t { none, magic, version, step, length, check, flags, content };
  Field field = none;          ///< `none`: all are right
  std::uint64_t found = 0;     ///< value in the packet
  std::uint64_t expected = 0;  ///< required value
};

/// Returns the first wrong field of a header; `none` if all are right.
TERSE_HD constexpr PacketFault find_fault(const PacketHeader& header, const ExpectedHeader& expected) {
  if (header.magic != PacketHeader::expected_magic)
    return {PacketFault::magic, header.magic, PacketHeader::expected_magic};
  if (header.version != PacketHeader::wire_version)
    return {PacketFault::version, header.version, PacketHeader::wire_version};
  if (header.step != expected.step) return {PacketFault::step, header.step, expected.step};
  if (header.length < expected.least || header.length > expected.most)
    return {PacketFault::length, header.length, expected.most};
  if (header.check == check_with_flags(expected.check, header.flags)) return {};
  return {header.check == expected.check ? PacketFault::flags : PacketFault::check, header.check,
          expected.check};
}

/// Describes a packet that `peer` has made. Names `from`, which has forwarded it, unless it is -1 or the same rank.
TERSE_COLD std::string packet_from(int peer, int from, const std::string& where = "");
[[noreturn]] TERSE_COLD void throw_fault(const PacketFault& fault, const char* content, std::uint64_t step,
                                         int peer, int rank, int from);

/// If there is a `fault`, throws wire_error about the packet that `peer` has made and `from`, if not -1, has forwarded.
/// `content` describes a fault of a section.
inline void refuse(const PacketFault& fault, const char* content, std::uint64_t step, int peer, int rank,
                   int from = -1) {
  if (fault.field != PacketFault::none) throw_fault(fault, content, step, peer, rank, from);
}

/// Reads and checks the header of a packet; throws wire_error that names the wrong field, as `refuse` does.
inline PacketHeader read_header(const std::byte* bytes, const ExpectedHeader& expected, int peer, int rank,
                                int from = -1) {
  PacketHeader header;
  std::memcpy(&header, bytes, sizeof header);
  refuse(find_fault(header, expected), "", expected.step, peer, rank, from);
  return header;
}

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/packet.ipp"
#endif
