// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/transport/assembly.hpp"
#include "terse/transport/levels.hpp"
#include "terse/transport/mailbox.hpp"

namespace terse {

/// Traffic of one call on this rank. A collective counts as a message to each peer and one from each peer, the
/// minimum that any algorithm needs. A message that may be shorter than its room counts as received with its full
/// room.
struct Load {
  std::uint64_t bytes_sent = 0;         ///< by this rank, over all peers
  std::uint64_t bytes_received = 0;     ///< by this rank, over all peers
  std::uint64_t messages_sent = 0;      ///< by this rank, over all peers
  std::uint64_t messages_received = 0;  ///< by this rank, over all peers

  static Load of(std::span<const Send> sends, std::span<const Receive> receives) {
    Load load{0, 0, sends.size(), receives.size()};
    for (const Send& send : sends) load.bytes_sent += static_cast<std::uint64_t>(send.bytes);
    for (const Receive& receive : receives) load.bytes_received += static_cast<std::uint64_t>(receive.bytes);
    return load;
  }
  /// Returns the traffic of a collective in which each rank has `bytes` bytes for each other rank.
  static Load of_all(int ranks, index_t bytes) {
    const auto peers = static_cast<std::uint64_t>(ranks - 1), each = static_cast<std::uint64_t>(bytes);
    return {peers * each, peers * each, peers, peers};
  }
  Load& operator+=(const Load& other) {
    bytes_sent += other.bytes_sent;
    bytes_received += other.bytes_received;
    messages_sent += other.messages_sent;
    messages_received += other.messages_received;
    return *this;
  }
};

/// Base of decorators: a transport around another one, which has exactly the abilities of the inner transport. All calls
/// that move bytes or wait go through `carry`, which `Derived` may replace. `Derived` also has `around`, which wraps
/// another transport, so that channels and levels are also decorated:
///
///     template <class Call> auto carry(Phase phase, const Load& load, const Call& call)     returns call(), which is a ticket
///                                                                                           of Inner or void
///     template <Transport T> Mine<T> around(T other) const                                  shares the decorator's state
///
/// A decorator whose `carry` returns its own ticket type names that type `Ticket`.
template <class Derived, Transport Inner>
class Forwarding {
 public:
  using memory = typename Inner::memory;
  using Ticket = TicketOf<Inner>;
  static constexpr bool joins_neighbors = detail::joins_neighbors<Inner>();

  explicit Forwarding(Inner inner) : inner_(std::move(inner)) {}

  Inner& inner() { return inner_; }
  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }

  [[nodiscard]] auto exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    return self().carry(phase, Load::of(sends, receives),
                        [&] { return inner_.exchange(sends, receives, phase); });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  Phase phase) requires GathersHostBytes<Inner> {
    self().carry(phase, Load::of_all(size(), static_cast<index_t>(mine.size())),
                 [&] { inner_.all_gather(mine, all, phase); });
  }
  [[nodiscard]] auto reduce_scatter(const float* blocks, float* own,
                                    index_t count) requires ReducesNatively<Inner> {
    return self().carry(Phase::reduce, Load::of_all(size(), count * static_cast<index_t>(sizeof(float))),
                        [&] { return inner_.reduce_scatter(blocks, own, count); });
  }
  [[nodiscard]] auto all_gather_in_place(std::byte* blocks, index_t bytes) requires ReducesNatively<Inner> {
    return self().carry(Phase::spread, Load::of_all(size(), bytes),
                        [&] { return inner_.all_gather_in_place(blocks, bytes); });
  }
  /// Makes a mailbox. Readers fetch its packets themselves, and `carry` doesn't see them.
  auto mailbox(index_t bytes) requires HasMailbox<Inner> { return inner_.mailbox(bytes); }

  void here() requires SaysHere<Inner> { inner_.here(); }

  auto split(int color, int key) { return self().around(inner_.split(color, key)); }
  template <class Stream>
  auto split(int color, int key, Stream stream) requires requires(Inner& inner) {
    inner.split(color, key, stream);
  }
  { return self().around(inner_.split(color, key, stream)); }

  // For transports of two levels. Both calls are collective: each makes a channel.
  auto inside() requires HasLevels<Inner> { return self().around(detail::own_channel(inner_.inside())); }
  auto across() requires HasLevels<Inner> { return self().around(detail::own_channel(inner_.across())); }
  int ranks_per_node() const requires requires(const Inner& inner) { inner.ranks_per_node(); }
  { return inner_.ranks_per_node(); }

  // For transports in the order of a stream.
  auto stream() const requires requires(const Inner& inner) { inner.stream(); }
  { return inner_.stream(); }
  void synchronize() requires requires(Inner& inner) { inner.synchronize(); }
  {
    self().carry(Phase::barrier, Load{}, [&] { inner_.synchronize(); });
  }
  void name_ranks(std::vector<int> names) requires requires(Inner& inner) { inner.name_ranks(names); }
  { inner_.name_ranks(std::move(names)); }
  void abort(const std::string& reason) noexcept requires requires(Inner& inner) { inner.abort(reason); }
  { inner_.abort(reason); }

  template <class Call>
  auto carry(Phase, const Load&, const Call& call) {
    return call();
  }

 protected:
  Inner inner_;

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
};

}  // namespace terse
