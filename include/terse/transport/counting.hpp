// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "terse/transport/mailbox.hpp"

namespace terse {

/// Adds up what a rank sends over an inner transport and the channels split from it, into a number that its owner keeps in
/// place: Metered's bytes_sent, without clocks and tickets of its own. Adds nothing but the sum to a batch. Packets of a
/// mailbox are fetched by whoever reads them, and don't count.
template <Transport Inner>
class Counting {
  static constexpr bool has_levels = requires(Inner & inner) {
    inner.inside();
    inner.across();
  };
  template <bool Has>
  struct LevelsOf {};
  template <bool Has>
  requires Has struct LevelsOf<Has> {
    std::optional<Counting<std::remove_cvref_t<decltype(std::declval<Inner&>().inside())>>> inside;
    std::optional<Counting<std::remove_cvref_t<decltype(std::declval<Inner&>().across())>>> across;
  };

 public:
  using memory = typename Inner::memory;
  using Ticket = TicketOf<Inner>;

  Counting(Inner inner, std::uint64_t& sent) : inner_(std::move(inner)), sent_(&sent) {}

  Inner& inner() { return inner_; }
  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    for (const Send& send : sends) *sent_ += static_cast<std::uint64_t>(send.bytes);
    return inner_.exchange(sends, receives, phase);
  }
  /// Counts as one message to each peer, as `Assembly` over other transports sends them.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  Phase phase) requires GathersHostBytes<Inner> {
    *sent_ += static_cast<std::uint64_t>(size() - 1) * mine.size();
    inner_.all_gather(mine, all, phase);
  }
  /// A transport's own collectives count as what no algorithm can do without: each rank's part of all other blocks.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count) requires
      requires(Inner& inner) {
    inner.reduce_scatter(blocks, own, count);
  }
  {
    *sent_ += static_cast<std::uint64_t>((size() - 1) * count) * sizeof(float);
    return inner_.reduce_scatter(blocks, own, count);
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) requires requires(Inner& inner) {
    inner.all_gather_in_place(blocks, bytes);
  }
  {
    *sent_ += static_cast<std::uint64_t>((size() - 1) * bytes);
    return inner_.all_gather_in_place(blocks, bytes);
  }

  auto stream() const requires requires(const Inner& inner) { inner.stream(); }
  { return inner_.stream(); }
  void synchronize() requires requires(Inner& inner) { inner.synchronize(); }
  { inner_.synchronize(); }
  template <class Names>
  void name_ranks(Names&& names) requires requires(Inner& inner) {
    inner.name_ranks(names);
  }
  { inner_.name_ranks(std::forward<Names>(names)); }
  template <class Reason>
  void abort(const Reason& reason) noexcept requires requires(Inner& inner) {
    inner.abort(reason);
  }
  { inner_.abort(reason); }
  auto mailbox(index_t bytes) requires HasMailbox<Inner> { return inner_.mailbox(bytes); }

  Counting split(int color, int key) { return Counting(inner_.split(color, key), *sent_); }
  template <class Stream>
  Counting split(int color, int key, Stream stream) requires requires(Inner& inner) {
    inner.split(color, key, stream);
  }
  { return Counting(inner_.split(color, key, stream), *sent_); }

  /// Of a transport of two levels. The first call is collective there, and makes a channel.
  auto& inside() requires has_levels { return level(levels_.inside, inner_.inside()); }
  auto& across() requires has_levels { return level(levels_.across, inner_.across()); }
  int ranks_per_node() const requires requires(const Inner& inner) { inner.ranks_per_node(); }
  { return inner_.ranks_per_node(); }

 private:
  template <class Level>
  Counting<Level>& level(std::optional<Counting<Level>>& counting, Level& of) {
    if (!counting) counting.emplace(of.split(0, of.rank()), *sent_);
    return *counting;
  }

  Inner inner_;
  std::uint64_t* sent_;
  [[no_unique_address]] LevelsOf<has_levels> levels_;
};

}  // namespace terse
