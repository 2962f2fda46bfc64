// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/deadline.hpp"

namespace terse {

/// Why a message travels; for counters and error texts.
enum class Phase { setup, agree, reduce, spread, barrier, forward, backward, finalize };
/// How many phases there are.
inline constexpr int phases = 8;
/// As error texts name a phase.
constexpr const char* name(Phase phase) {
  constexpr const char* names[phases] = {"setup",   "agree",   "reduce",   "spread",
                                         "barrier", "forward", "backward", "finalize"};
  return names[static_cast<int>(phase)];
}

/// `bytes` bytes from `data` to rank `peer`, which has made room for `room` bytes (0: for just these).
struct Send {
  int peer = 0;                     ///< who receives
  const std::byte* data = nullptr;  ///< what is sent
  index_t bytes = 0;                ///< how much
  index_t room = 0;                 ///< that the peer has made; 0: just as much
};
/// `bytes` bytes from rank `peer` into `data`: exactly as many as that rank sends, or, with `up_to`, at most;
/// what is not sent is left as it is.
struct Receive {
  int peer = 0;               ///< who sends
  std::byte* data = nullptr;  ///< where it goes
  index_t bytes = 0;          ///< what comes, or at most
  bool up_to = false;         ///< whether less may come
};

/// A batch under way, from `Transport::exchange`. Move-only. The buffers and the lists of the batch stay in
/// place until `ready()` has said true or `wait()` has returned. Dropping it earlier abandons the batch.
template <class T>
concept Ticket =
    std::movable<T> && !std::copyable<T> && requires(T & ticket, std::chrono::milliseconds deadline) {
  { ticket.ready() } -> std::same_as<bool>;
  ticket.wait();
  ticket.wait(deadline);
};

/// Moves bytes between the ranks of a group. `exchange` takes all messages of a phase as one batch, at most
/// one to and one from each peer, so nobody can order sends and receives into a deadlock. Messages between
/// two ranks of a channel arrive in the order of their batches. A dead, late or throwing peer ends a wait
/// with peer_error. `split(color, key)` is collective and makes a channel of its own among the ranks of equal
/// color, ranked by key.
template <class T>
concept Transport = std::movable<T> &&
    requires(T& transport, std::span<const Send> sends, std::span<const Receive> receives, int number) {
  typename T::memory;
  { transport.rank() } -> std::same_as<int>;
  { transport.size() } -> std::same_as<int>;
  { transport.exchange(sends, receives, Phase::reduce) } -> Ticket;
  { transport.split(number, number) } -> std::same_as<T>;
};

namespace detail {

/// A stand-in, by which others say what they make of a transport.
struct SomeTransport {
  using memory = terse::memory::host;
  struct Ticket {
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&&) = default;
    bool ready();
    void wait();
    void wait(std::chrono::milliseconds);
  };
  int rank() const;
  int size() const;
  Ticket exchange(std::span<const Send>, std::span<const Receive>, Phase);
  SomeTransport split(int, int);
};

}  // namespace detail

/// A transport over which a rank can say that it is at work on something long, such as an evaluation, so that no rank takes it
/// for late:
///
///     transport.here()       the deadlines of waits that need this rank begin again. On this rank alone; never waits
template <class T>
concept SaysHere = requires(T& transport) {
  transport.here();
};

/// What a transport's batches are held by.
template <class T>
using TicketOf = decltype(std::declval<T&>().exchange(
    std::declval<std::span<const Send>>(), std::declval<std::span<const Receive>>(), Phase::reduce));

namespace detail {

/// Whether a transport copies messages of a batch at once where they lie one right behind the other.
template <class T>
constexpr bool joins_neighbors() {
  if constexpr (requires { T::joins_neighbors; }) return T::joins_neighbors;
  return false;
}
/// Bytes from one packet of a batch to the next, in one buffer. Others than these transports are faster where packets are
/// aligned.
template <class T>
constexpr index_t packet_room(index_t bytes) {
  return joins_neighbors<T>() ? (bytes + 7) / 8 * 8 : aligned(bytes);
}

}  // namespace detail

/// A transport of two levels, see Nodes: ranks of a node, and the ranks of one number on all nodes. Each is a reference or,
/// from decorators, a channel that the call makes.
template <class T>
concept HasLevels = requires(T& transport) {
  requires Transport<std::remove_cvref_t<decltype(transport.inside())>>;
  requires Transport<std::remove_cvref_t<decltype(transport.across())>>;
  { transport.ranks_per_node() } -> std::same_as<int>;
};

/// A transport with collectives of its own for equal blocks, one for each rank. Their tickets are those of its batches, and a
/// wait for them has the same deadline.
///
///     reduce_scatter(blocks, own, count)       own[k] = the sum over ranks of their blocks[rank * count + k], floats, in an
///                                              order that the transport chooses
///     all_gather_in_place(blocks, bytes)       every rank's block, where it is, on all ranks
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

/// Says in words what is wrong with what exchange returns.
template <class K>
constexpr void check_ticket() {
  static_assert(std::movable<K> && !std::copyable<K>,
                "terse: a transport's ticket, which its exchange returns, stands for one batch under way: it "
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

/// Says in words what a type lacks to be a transport.
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

/// A transport that gathers host bytes by itself: `all` takes one block of `mine`'s size from each rank, in rank order.
/// Blocking, collective. Those whose buffers live elsewhere must, since `exchange` can't carry values of the host.
template <class T>
concept GathersHostBytes = requires(T& transport, std::span<const std::byte> mine, std::span<std::byte> all) {
  transport.all_gather(mine, all, Phase::setup);
};

namespace detail {

/// Gathers host bytes by `exchange` over a transport of host memory, for transports that go around one.
class HostGather {
 public:
  /// With room for so many ranks; other numbers allocate.
  TERSE_COLD explicit HostGather(int ranks = 0) {
    sends_.reserve(static_cast<std::size_t>(ranks));
    receives_.reserve(static_cast<std::size_t>(ranks));
  }
  template <Transport T>
  void operator()(T& transport, std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    sends_.clear();
    receives_.clear();
    const auto bytes = static_cast<index_t>(mine.size());
    for (int peer = 0; peer < transport.size(); ++peer) {
      std::byte* const place = all.data() + peer * bytes;
      if (peer == transport.rank()) {
        std::memmove(place, mine.data(), mine.size());
        continue;
      }
      sends_.push_back({peer, mine.data(), bytes, 0});
      receives_.push_back({peer, place, bytes, false});
    }
    transport.exchange(sends_, receives_, phase).wait();
  }

 private:
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};
/// By the transport itself, where it can.
template <Transport T>
void gather_host_bytes(T& transport, HostGather& by_exchange, std::span<const std::byte> mine,
                       std::span<std::byte> all, Phase phase) {
  if constexpr (GathersHostBytes<T>)
    transport.all_gather(mine, all, phase);
  else
    by_exchange(transport, mine, all, phase);
}

/// Gathers a block of host bytes of each rank, each with a checksum of 32 bits behind it.
class CheckedGather {
 public:
  using Sum = std::uint32_t;

  /// For so many ranks with blocks of so many bytes; more bytes allocate.
  TERSE_COLD explicit CheckedGather(int ranks, std::size_t bytes = 0) : gather_(ranks) {
    blocks_.reserve(static_cast<std::size_t>(ranks) * (bytes + sizeof(Sum)));
  }
  /// Throws wire_error where a block is not what its rank has sent.
  template <Transport T>
  void operator()(T& transport, std::span<const std::byte> mine, std::span<std::byte> all, Phase phase,
                  std::int64_t step = -1) {
    const std::size_t bytes = mine.size(), block = bytes + sizeof(Sum);
    blocks_.resize(static_cast<std::size_t>(transport.size()) * block);
    std::byte* const own = blocks_.data() + static_cast<std::size_t>(transport.rank()) * block;
    const Sum sum = sum_of(mine);
    std::copy(mine.begin(), mine.end(), own);
    std::memcpy(own + bytes, &sum, sizeof sum);
    gather_host_bytes(transport, gather_, {own, block}, blocks_, phase);
    for (int peer = 0; peer < transport.size(); ++peer) {
      const std::byte* const theirs = blocks_.data() + static_cast<std::size_t>(peer) * block;
      Sum told;
      std::memcpy(&told, theirs + bytes, sizeof told);
      if (told != sum_of({theirs, bytes})) refuse(peer, phase, transport.rank(), step);
      std::copy_n(theirs, bytes, all.begin() + peer * static_cast<std::ptrdiff_t>(bytes));
    }
  }

 private:
  static Sum sum_of(std::span<const std::byte> block) {
    return static_cast<Sum>(hash_bytes(block.data(), block.size()) >> 32);
  }
  [[noreturn]] TERSE_COLD static void refuse(int peer, Phase phase, int rank, std::int64_t step) {
    throw wire_error(
        "the message from rank " + std::to_string(peer) + " (phase '" + name(phase) +
            "') is not what its checksum was made of: it was damaged on its way, or that rank is "
            "in another call or has another version of terse",
        rank, step);
  }

  HostGather gather_;
  std::vector<std::byte> blocks_;
};

}  // namespace detail

/// Shows every rank the value of every other, in rank order. Collective; made once, it allocates nothing when
/// called. Sends sizeof(Value) + 4 bytes to each peer, of which 4 are a checksum: damage on the way is a wire_error that names
/// the rank, and the optimizer's `step` where one is given.
template <class Value, Transport T>
class Assembly {
  static_assert(std::is_trivially_copyable_v<Value>);
  static_assert(
      std::is_same_v<typename T::memory, memory::host> || GathersHostBytes<T>,
      "terse: a transport whose messages are not in host memory needs all_gather(mine, all, phase)");

 public:
  explicit Assembly(T& transport)
      : gather_(transport.size(), sizeof(Value)),
        all_(static_cast<std::size_t>(transport.size()) * sizeof(Value)) {}

  /// What a rank sends among `size` ranks.
  static constexpr index_t bytes(int size) {
    return (size - 1) * static_cast<index_t>(sizeof(Value) + sizeof(detail::CheckedGather::Sum));
  }
  std::span<const Value> operator()(T& transport, const Value& mine, Phase phase, std::int64_t step = -1) {
    gather_(transport, std::as_bytes(std::span(&mine, 1)), all_, phase, step);
    return {reinterpret_cast<const Value*>(all_.data()), all_.size() / sizeof mine};
  }

 private:
  detail::CheckedGather gather_;
  std::vector<std::byte> all_;
};

/// Returns when all ranks have called it.
template <Transport T>
void barrier(T& transport, Phase phase = Phase::barrier) {
  // Without a checksum: there is nothing in it that could be wrong.
  const std::byte mine{};
  std::vector<std::byte> all(static_cast<std::size_t>(transport.size()));
  detail::HostGather gather(transport.size());
  detail::gather_host_bytes(transport, gather, {&mine, 1}, all, phase);
}

/// Before a wait for the device: messages of transports that work in its stream's order come first, with a deadline,
/// which a wait for the stream alone doesn't have.
template <class T>
void await_messages(T& channel) {
  if constexpr (requires { channel.synchronize(); }) channel.synchronize();
}

}  // namespace terse
