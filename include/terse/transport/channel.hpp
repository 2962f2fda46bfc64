// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "terse/transport/any.hpp"
#include "terse/transport/forwarding.hpp"

namespace terse {

namespace detail {

template <class T>
inline constexpr bool is_any_transport = false;
template <class Memory>
inline constexpr bool is_any_transport<AnyTransportOf<Memory>> = true;

}  // namespace detail

/// An optimizer's transport: one type for all transports and memories, which topologies, exchanges and recipes use. It is a
/// transport itself, and counts the bytes that its rank sends. Cost: that of AnyTransport; it does not wrap an AnyTransport
/// a second time.
class Channel {
 public:
  /// Packets are in the memory of the executor.
  using memory = void;
  using Ticket = detail::AnyTicket;

  /// Wraps a transport, and adds the bytes that this rank sends to `sent`. Both must outlive it.
  template <class T>
  requires(!std::same_as<T, Channel>) explicit Channel(T& transport, std::uint64_t* sent = nullptr)
      : sent_(sent) {
    if constexpr (detail::is_any_transport<T>)
      transport_ = transport.inner_.get();
    else
      transport_ = (own_ = std::make_unique<detail::Erased<T>>(&transport)).get();
    rank_ = transport_->rank();
    size_ = transport_->size();
    joins_neighbors_ = transport_->joins_neighbors();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    count(Load::of(sends, receives));
    return transport_->exchange(sends, receives, phase);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    count(Load::of_all(size_, static_cast<index_t>(mine.size())));
    transport_->all_gather(mine, all, phase);
  }
  /// Starts the transport's own collectives, see ReducesNatively. They throw usage_error if it has none.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count_) {
    count(Load::of_all(size_, count_ * static_cast<index_t>(sizeof(float))));
    return transport_->reduce_scatter(blocks, own, count_);
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) {
    count(Load::of_all(size_, bytes));
    return transport_->all_gather_in_place(blocks, bytes);
  }
  Channel split(int color, int key) { return Channel(transport_->split(color, key), sent_); }

  /// Returns the number of ranks per node of a transport of two levels; 0 for other transports.
  int ranks_per_node() const { return transport_->ranks_per_node(); }
  /// Makes the channel of a node's `width` ranks (inside) or of the ranks with this number on all nodes (across). Collective.
  Channel inside(int width) { return Channel(transport_->inside(width), sent_); }
  Channel across(int width) { return Channel(transport_->across(width), sent_); }

  /// Returns the distance in bytes between packets of a batch in one buffer.
  index_t packet_room(index_t bytes) const { return joins_neighbors_ ? (bytes + 7) / 8 * 8 : aligned(bytes); }
  /// Checks whether messages keep the order of a stream. One channel then carries all of them.
  bool in_stream_order() const { return transport_->in_stream_order(); }
  void synchronize() { transport_->synchronize(); }

  /// Makes a mailbox, whose packets aren't counted. Throws usage_error if the transport has none.
  std::unique_ptr<detail::AnyMailbox> mailbox(index_t bytes) { return transport_->mailbox(bytes); }

 private:
  Channel(std::unique_ptr<detail::ErasedTransport> own, std::uint64_t* sent)
      : own_(std::move(own)),
        transport_(own_.get()),
        sent_(sent),
        rank_(own_->rank()),
        size_(own_->size()),
        joins_neighbors_(own_->joins_neighbors()) {}
  void count(const Load& load) {
    if (sent_ != nullptr) *sent_ += load.bytes_sent;
  }

  std::unique_ptr<detail::ErasedTransport> own_;
  detail::ErasedTransport* transport_;
  std::uint64_t* sent_;
  int rank_, size_;
  bool joins_neighbors_;
};

}  // namespace terse
