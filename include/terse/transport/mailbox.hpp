// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "terse/transport/assembly.hpp"

namespace terse {

/// One packet of each rank, which other ranks can read at any time without that rank's help. It is made by
/// `transport.mailbox(bytes)`, collective, with packets of `bytes` bytes on all ranks.
///
///     publish(packet)         replaces this rank's packet
///     fetch(peer, place)      copies the last packet that rank `peer` has published and returns its version, the number
///                             of packets published so far; 0: it has published none, and `place` stays unchanged
///
/// A packet is never torn: fetch copies one whole packet. Neither call waits longer than a copy of a packet takes. A
/// rank's end may be used by one thread at a time. Both calls throw usage_error for other sizes and for ranks that
/// don't exist.
template <class B>
concept Mailbox =
    std::movable<B> && !std::copyable<B> &&
    requires(B & mailbox, std::span<const std::byte> packet, std::span<std::byte> place, int peer) {
  mailbox.publish(packet);
  { mailbox.fetch(peer, place) } -> std::same_as<std::uint64_t>;
};

/// A transport that has mailboxes.
template <class T>
concept HasMailbox = requires(T& transport, index_t bytes) {
  { transport.mailbox(bytes) } -> Mailbox;
};

namespace detail {

/// Throws usage_error unless all ranks request packets of one size. Collective.
template <Transport T>
void agree_on_packet(T& transport, index_t bytes) {
  Assembly<index_t, T> everyone(transport);
  for (const index_t theirs : everyone(transport, bytes, Phase::setup))
    if (bytes < 0 || theirs != bytes)
      throw usage_error("a mailbox has packets of one size >= 0 on all ranks, not of " +
                            std::to_string(bytes) + " and " + std::to_string(theirs) + " bytes",
                        transport.rank());
}

void check_packet(std::size_t found, index_t bytes, int rank);
void check_publisher(int peer, int size, int rank);

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/mailbox.ipp"
#endif
