// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"

namespace terse {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian, as the machines are");

/// The first 32 bytes of every packet. After it come, each part aligned to 8 bytes, the compressor's section
/// (scales in piece order, then the codes of each piece), the elements of dense pieces as fp32, and a float of
/// the recipe's own. A section whose size depends on the data comes last.
struct PacketHeader {
  static constexpr std::uint32_t expected_magic = 0x53525434;  // "4TRS" in memory
  static constexpr std::uint16_t wire_version = 1;
  /// `flags`: 0 = all finite, else 1 + the first rank whose message was not (saturating).
  static constexpr std::uint16_t finite = 0;

  std::uint32_t magic = expected_magic;
  std::uint16_t version = wire_version;
  std::uint16_t flags = finite;
  std::uint64_t step = 0;
  std::uint64_t length = 0;  ///< bytes of the packet, this header included
  std::uint64_t check =
      0;  ///< hash of the exchange's fingerprint, the step's hyper-parameters, phase, chunk and sender
};
static_assert(sizeof(PacketHeader) == 32);

/// Checks a header that came from `peer` against what must have come, `least` to `most` bytes of packet; throws
/// wire_error that names the field.
inline PacketHeader read_header(const std::byte* bytes, std::uint64_t least, std::uint64_t most,
                                std::uint64_t step, std::uint64_t check, int peer, int rank) {
  PacketHeader header;
  std::memcpy(&header, bytes, sizeof header);
  const auto refuse = [&](const std::string& field, std::uint64_t found, std::uint64_t expected) {
    throw wire_error("the packet from rank " + std::to_string(peer) + " has " + field + " " +
                         std::to_string(found) + ", expected " + std::to_string(expected),
                     rank, static_cast<std::int64_t>(step));
  };
  if (header.magic != PacketHeader::expected_magic)
    refuse("magic", header.magic, PacketHeader::expected_magic);
  if (header.version != PacketHeader::wire_version)
    refuse("wire version", header.version, PacketHeader::wire_version);
  if (header.step != step) refuse("step", header.step, step);
  if (header.length < least || header.length > most) refuse("length", header.length, most);
  if (header.check != check)
    throw wire_error(
        "the packet from rank " + std::to_string(peer) +
            " belongs to another exchange, or that rank runs with other hyper-parameters (learning rate, "
            "betas, ...) in this step",
        rank, static_cast<std::int64_t>(step));
  return header;
}

}  // namespace terse
