// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/packet.hpp"
#include "terse/core/separate.hpp"

namespace terse::detail {

TERSE_CORE std::string packet_from(int peer, int from, const std::string& where) {
  const std::string text = "the packet from rank " + std::to_string(peer) + where;
  return from < 0 || from == peer ? text : text + ", received from rank " + std::to_string(from) + ",";
}

TERSE_CORE void throw_fault(const PacketFault& fault, const char* content, std::uint64_t step, int peer,
                            int rank, int from) {
  constexpr const char* names[] = {"", "magic", "wire version", "step", "length"};
  std::string text = packet_from(peer, from);
  if (fault.field == PacketFault::check)
    text += " belongs to another exchange, or rank " + std::to_string(peer) +
            " runs with other hyper-parameters (learning rate, betas, ..., of any group), another mask or "
            "other scales of a segment (rescale) in this step, or the packet was damaged on its way";
  else if (fault.field == PacketFault::flags)
    text += " was damaged on its way: its flags don't match its check";
  else if (fault.field == PacketFault::content)
    text += std::string(" has ") + content;
  else
    text += std::string(" has ") + names[fault.field] + " " + std::to_string(fault.found) + ", expected " +
            std::to_string(fault.expected);
  throw wire_error(text, rank, static_cast<std::int64_t>(step));
}

}  // namespace terse::detail
