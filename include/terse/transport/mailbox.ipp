// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/transport/mailbox.hpp"

namespace terse::detail {

TERSE_CORE void check_packet(std::size_t found, index_t bytes, int rank) {
  if (found != static_cast<std::size_t>(bytes))
    throw usage_error(
        "this mailbox has packets of " + std::to_string(bytes) + " bytes, not of " + std::to_string(found),
        rank);
}

TERSE_CORE void check_publisher(int peer, int size, int rank) {
  if (peer < 0 || peer >= size)
    throw usage_error("no rank " + std::to_string(peer) + " publishes here", rank);
}

}  // namespace terse::detail
