// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/deadline.hpp"

namespace terse {

/// Purpose of a message, for counters and error texts.
enum class Phase { setup, agree, reduce, spread, barrier, forward, backward, finalize };
/// Number of phases.
inline constexpr int phases = 8;
/// Returns the name of a phase in error texts.
constexpr const char* name(Phase phase) {
  constexpr const char* names[phases] = {"setup",   "agree",   "reduce",   "spread",
                                         "barrier", "forward", "backward", "finalize"};
  return names[static_cast<int>(phase)];
}

/// A message of `bytes` bytes from `data` to rank `peer`, which has made room for `room` bytes (0: for exactly `bytes`).
struct Send {
  int peer = 0;                     ///< receiver
  const std::byte* data = nullptr;  ///< first byte
  index_t bytes = 0;                ///< number of bytes
  index_t room = 0;                 ///< bytes that the peer has made room for; 0: `bytes`
};
/// A message from rank `peer` into `data`: of exactly `bytes` bytes or, if `up_to`, of at most `bytes` bytes. Bytes that
/// are not sent stay unchanged.
struct Receive {
  int peer = 0;               ///< sender
  std::byte* data = nullptr;  ///< destination
  index_t bytes = 0;          ///< exact length, or the largest
  bool up_to = false;         ///< true: the message may be shorter
};

/// A batch in flight, returned by `Transport::exchange`. Move-only. The buffers and the lists of the batch must stay
/// in place until `ready()` has returned true or `wait()` has returned. Destroying the ticket earlier abandons the
/// batch.
template <class T>
concept Ticket =
    std::movable<T> && !std::copyable<T> && requires(T & ticket, std::chrono::milliseconds deadline) {
  { ticket.ready() } -> std::same_as<bool>;
  ticket.wait();
  ticket.wait(deadline);
};

/// A ticket that knows whose message is missing:
///
///     ticket.awaited()       returns the first peer that has not sent its message, or not taken this rank's; -1: there is none, or the
///                            batch doesn't tell
template <class K>
concept KnowsAwaited = Ticket<K> && requires(K& ticket) {
  { ticket.awaited() } -> std::same_as<int>;
};

/// One rank's end of a group of ranks that exchange bytes. `exchange` takes all messages of a phase as one batch, at
/// most one to and one from each peer, so that no order of sends and receives can cause a deadlock. Messages between
/// two ranks of a channel arrive in the order of their batches. If a peer is dead, late or has thrown, a wait ends
/// with peer_error. `split(color, key)` is collective and makes a separate channel among the ranks of equal color,
/// ranked by key.
template <class T>
concept Transport = std::movable<T> &&
    requires(T& transport, std::span<const Send> sends, std::span<const Receive> receives, int number) {
  typename T::memory;
  { transport.rank() } -> std::same_as<int>;
  { transport.size() } -> std::same_as<int>;
  { transport.exchange(sends, receives, Phase::reduce) } -> Ticket;
  { transport.split(number, number) } -> std::same_as<T>;
};

/// A transport over which a rank can report that it is busy with long work, such as an evaluation, so that no rank
/// considers it late:
///
///     transport.here()       restarts the deadlines of waits that need this rank. Not collective; never waits
template <class T>
concept SaysHere = requires(T& transport) {
  transport.here();
};

/// Type of the tickets of a transport's batches.
template <class T>
using TicketOf = decltype(std::declval<T&>().exchange(
    std::declval<std::span<const Send>>(), std::declval<std::span<const Receive>>(), Phase::reduce));

namespace detail {

/// Checks whether a transport copies adjacent messages of a batch together. Other transports are faster with aligned
/// packets.
template <class T>
constexpr bool joins_neighbors() {
  if constexpr (requires { T::joins_neighbors; }) return T::joins_neighbors;
  return false;
}
/// True for transports whose messages keep the order of a stream. One channel then carries all of them.
template <class T>
inline constexpr bool in_stream_order = requires(T& transport) {
  transport.synchronize();
};

}  // namespace detail

/// A transport of two levels, see Nodes: the ranks of a node, and the ranks with equal numbers on all nodes. Each level
/// is a reference or, from decorators, a channel that the call makes.
template <class T>
concept HasLevels = requires(T& transport) {
  requires Transport<std::remove_cvref_t<decltype(transport.inside())>>;
  requires Transport<std::remove_cvref_t<decltype(transport.across())>>;
  { transport.ranks_per_node() } -> std::same_as<int>;
};

/// A transport with its own collectives for equal blocks, one block for each rank. Their tickets are those of its
/// batches, and a wait for them has the deadline of other waits.
///
///     reduce_scatter(blocks, own, count)       own[k] = the sum over ranks of their blocks[rank * count + k], floats, in an
///                                              order that the transport chooses
///     all_gather_in_place(blocks, bytes)       copies every rank's block, at its place in `blocks`, to all ranks
template <class T>
concept ReducesNatively = Transport<T> &&
    requires(T& transport, const float* blocks, float* own, std::byte* all, index_t count) {
  { transport.reduce_scatter(blocks, own, count) } -> std::same_as<TicketOf<T>>;
  { transport.all_gather_in_place(all, count) } -> std::same_as<TicketOf<T>>;
};

namespace detail {

template <class T>
concept StartsBatches = requires {
  typename TicketOf<T>;
};

/// Reports a missing member of a ticket with a readable static_assert.
template <class K>
constexpr void check_ticket() {
  static_assert(std::movable<K> && !std::copyable<K>,
                "terse: a transport's ticket, which its exchange returns, represents one batch in flight: it "
                "is movable and not copyable");
  static_assert(
      requires(K & ticket) {
        { ticket.ready() } -> std::same_as<bool>;
      },
      "terse: a transport's ticket needs `bool ready()`, which moves the batch on without waiting");
  static_assert(
      requires(K & ticket) { ticket.wait(); },
      "terse: a transport's ticket needs `void wait()`, which returns when the batch is done and throws "
      "peer_error at the transport's deadline");
  static_assert(
      requires(K & ticket, std::chrono::milliseconds deadline) { ticket.wait(deadline); } ||
          !requires(K & ticket) { ticket.wait(); },
      "terse: a transport's ticket needs `void wait(std::chrono::milliseconds deadline)`");
}

}  // namespace detail

/// Reports a missing member of a transport with a readable static_assert.
template <class T>
constexpr bool check_transport() {
  static_assert(std::movable<T>, "terse: a transport is movable: an optimizer owns a channel of its own");
  static_assert(
      requires { typename T::memory; },
      "terse: a transport names the `memory` that its messages lie in: memory::host or memory::device");
  static_assert(
      requires(T & transport) {
        { transport.rank() } -> std::same_as<int>;
      },
      "terse: a transport needs `int rank() const`");
  static_assert(
      requires(T & transport) {
        { transport.size() } -> std::same_as<int>;
      },
      "terse: a transport needs `int size() const`, the number of ranks");
  static_assert(
      requires(T & transport, int number) {
        { transport.split(number, number) } -> std::same_as<T>;
      },
      "terse: a transport needs `split(int color, int key)`, which returns a channel of its own, of the same "
      "type");
  static_assert(
      detail::StartsBatches<T>,
      "terse: a transport needs `exchange(std::span<const Send>, std::span<const Receive>, Phase)`, "
      "which starts a batch and returns its ticket");
  if constexpr (detail::StartsBatches<T>) detail::check_ticket<TicketOf<T>>();
  return Transport<T>;
}

}  // namespace terse
