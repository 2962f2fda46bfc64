// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/view.hpp"
#include "terse/transport/call.hpp"
#include "terse/transport/concept.hpp"

// Gathers of a few host bytes from each rank, by which ranks agree.

namespace terse {

/// A transport that gathers host bytes by itself: `all` takes one block of `mine`'s size from each rank, in rank order.
/// Blocking, collective. Required if its buffers are not in host memory, since `exchange` then can't carry host values.
template <class T>
concept GathersHostBytes = requires(T& transport, std::span<const std::byte> mine, std::span<std::byte> all) {
  transport.all_gather(mine, all, Phase::setup);
};

namespace detail {

/// Gather of host bytes by `exchange` over a transport of host memory, for transports that wrap one.
class HostGather {
 public:
  /// Reserves room for `ranks` ranks; more ranks allocate.
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
/// Gathers by the transport itself if it can, otherwise by `exchange`.
template <Transport T>
void gather_host_bytes(T& transport, HostGather& by_exchange, std::span<const std::byte> mine,
                       std::span<std::byte> all, Phase phase) {
  if constexpr (GathersHostBytes<T>)
    transport.all_gather(mine, all, phase);
  else
    by_exchange(transport, mine, all, phase);
}

/// Gather of a block of host bytes from each rank, each followed by 32 bits: its checksum xor the number of the call in
/// which its rank is (`tag_of`).
class CheckedGather {
 public:
  using Sum = std::uint32_t;

  /// Reserves room for `ranks` blocks of `bytes` bytes; more bytes allocate.
  TERSE_COLD explicit CheckedGather(int ranks, std::size_t bytes = 0) : gather_(ranks) {
    blocks_.reserve(static_cast<std::size_t>(ranks) * (bytes + sizeof(Sum)));
  }
  /// Throws mismatch_error if a rank is in another call, and wire_error if a block does not match its checksum.
  template <Transport T>
  TERSE_COLD void operator()(T& transport, std::span<const std::byte> mine, std::span<std::byte> all,
                             Phase phase, std::int64_t step = -1) {
    const std::span<const std::byte> own = put(mine, transport.rank(), transport.size());
    gather_host_bytes(transport, gather_, own, blocks_, phase);
    take(all, mine.size(), phase, transport.rank(), transport.size(), step);
  }

 private:
  std::span<const std::byte> put(std::span<const std::byte> mine, int rank, int ranks);
  void take(std::span<std::byte> all, std::size_t bytes, Phase phase, int rank, int ranks, std::int64_t step);
  static Sum sum_of(std::span<const std::byte> block) {
    return static_cast<Sum>(hash_bytes(block.data(), block.size()) >> 32);
  }
  [[noreturn]] TERSE_COLD static void refuse(int peer, Phase phase, std::uint32_t tag, int rank,
                                             std::int64_t step);

  HostGather gather_;
  std::vector<std::byte> blocks_;
};

}  // namespace detail

/// A gather that shows every rank the value of every other rank, in rank order. Collective. Construction takes all
/// memory; calls allocate nothing. Sends sizeof(Value) + 4 bytes to each peer, of which 4 are a checksum. Damage on the
/// way is a wire_error that names the rank and, if one is given, the optimizer's `step`.
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

  /// Returns the number of bytes that a rank sends among `size` ranks.
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

/// Returns after all ranks have called it.
template <Transport T>
void barrier(T& transport, Phase phase = Phase::barrier) {
  // There is no checksum, since the byte carries no information.
  const std::byte mine{};
  std::vector<std::byte> all(static_cast<std::size_t>(transport.size()));
  detail::HostGather gather(transport.size());
  detail::gather_host_bytes(transport, gather, {&mine, 1}, all, phase);
}

namespace detail {

/// Waits for stream-ordered messages with a deadline; call it before synchronizing the stream, which has no
/// deadline.
template <class T>
void await_messages(T& channel) {
  if constexpr (in_stream_order<T>) channel.synchronize();
}

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/assembly.ipp"
#endif
