// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/topology/envelope.hpp"

namespace terse::detail {

TERSE_CORE std::string rank_in(std::uint16_t flags) {
  const int rank = (flags & ~PacketHeader::refused) - 1;
  return "rank " + std::to_string(rank) + (rank == PacketHeader::refused - 2 ? " or a higher one" : "");
}

TERSE_CORE void throw_refused(std::uint16_t flags, int rank, std::uint64_t step) {
  throw wire_error(
      rank_in(flags) + " has refused a packet of this step; see that rank's own error for the reason", rank,
      static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_non_finite(std::uint16_t flags, int rank, std::uint64_t step) {
  throw non_finite_error("a message or a sum of " + rank_in(flags) +
                             " is not finite (NaN, infinity, or too large for squares or its compressor)",
                         flags - 1, rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_unreadable(int sender, int rank, std::uint64_t step) {
  throw wire_error("the packet from rank " + std::to_string(sender) +
                       " can't be decoded with this rank's own parameters: the two differ by more than the "
                       "compressor's bound, or are not finite. Raise the bound (Lattice's step), or lower "
                       "the learning rate; ranks must start from the same parameters",
                   rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_damaged(const std::string& packet, const char* sign, int rank, std::uint64_t step) {
  throw wire_error(packet + " was damaged on its way: " + sign, rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_damage(std::uint64_t origin, int rank, std::uint64_t step) {
  const auto sender = static_cast<int>(origin & 0xFFFFFF);
  const std::string where = std::string(" (phase '") + name(static_cast<Phase>(origin >> 24 & 0x7F)) + "')";
  throw_damaged((origin & handed_on) == 0
                    ? packet_from(sender, -1, where)
                    : "a packet that rank " + std::to_string(sender) + " has forwarded" + where,
                "it has values that are not finite, which terse never sends", rank, step);
}

TERSE_CORE void throw_payload(std::uint64_t place, int sender, int from, int rank, std::uint64_t step) {
  throw_damaged(packet_from(sender, from,
                            std::string(" (phase '") + name(static_cast<Phase>(place >> 48)) + "', chunk " +
                                std::to_string(place >> 24 & 0xFFFFFF) + ")"),
                "its payload or its flags don't match its checksum", rank, step);
}

}  // namespace terse::detail
