// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "terse/transport/erased.hpp"

namespace terse {

class Channel;

/// A single type for all transports of one kind of memory, so that optimizers are compiled once for all of them, also in
/// units without MPI or NCCL:
///
///     terse::AnyTransport transport(terse::Mpi::world());
///     terse::Optimizer<terse::Adam<>, terse::AnyTransport> optimizer{{}, transport, layout};
///
/// Batches allocate nothing. Cost: one indirect call for each batch, for each query of its ticket, and for each packet
/// of a mailbox.
///
/// For device memory it may contain Nccl or ThroughHost, and makes only the promises that both of them keep: one channel
/// for all messages, as if they were in a stream's order, and `synchronize()`. If they are not in a stream's order, it
/// returns at once.
template <class Memory>
class AnyTransportOf {
  static constexpr bool on_host = std::same_as<Memory, terse::memory::host>;

 public:
  using memory = Memory;
  using Ticket = detail::AnyTicket;
  /// True for device memory: ThroughHost gains more from joint copies than Nccl from alignment.
  static constexpr bool joins_neighbors = !on_host;

  class Mailbox {
   public:
    void publish(std::span<const std::byte> packet) { mailbox_->publish(packet); }
    std::uint64_t fetch(int peer, std::span<std::byte> place) { return mailbox_->fetch(peer, place); }

   private:
    friend class AnyTransportOf;
    explicit Mailbox(std::unique_ptr<detail::AnyMailbox> mailbox) : mailbox_(std::move(mailbox)) {}
    std::unique_ptr<detail::AnyMailbox> mailbox_;
  };

  // T is checked inside the function: nvcc would evaluate a constraint for AnyTransportOf before that type is a
  // transport.
  template <class T>
  requires(!std::same_as<T, AnyTransportOf>) explicit AnyTransportOf(T transport)
      : inner_(std::make_unique<detail::Erased<T>>(std::move(transport))) {
    static_assert(Transport<T> && std::same_as<typename T::memory, memory>);
  }

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }
  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    return inner_->exchange(sends, receives, phase);
  }
  /// Gathers in the transport's own way: over Nodes some ranks can't send to each other.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    inner_->all_gather(mine, all, phase);
  }
  /// Starts the transport's own collectives, see ReducesNatively. They throw usage_error if it has none.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count) {
    return inner_->reduce_scatter(blocks, own, count);
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) {
    return inner_->all_gather_in_place(blocks, bytes);
  }
  /// Returns the number of ranks per node of a transport of two levels; 0 for other transports.
  int ranks_per_node() const { return inner_->ranks_per_node(); }
  AnyTransportOf split(int color, int key) { return AnyTransportOf(inner_->split(color, key)); }
  /// Makes a mailbox. Throws usage_error if the transport has none.
  Mailbox mailbox(index_t bytes) requires(on_host) { return Mailbox(inner_->mailbox(bytes)); }
  /// Restarts deadlines, see SaysHere. Throws usage_error if the transport can't do this.
  void here() { inner_->here(); }
  /// Returns the stream, to compare with an executor's; it is equal to any stream if messages follow no stream's
  /// order.
  detail::AnyStream stream() const requires(!on_host) { return inner_->stream(); }
  void synchronize() requires(!on_host) { inner_->synchronize(); }

 private:
  friend class Channel;
  explicit AnyTransportOf(std::unique_ptr<detail::ErasedTransport> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<detail::ErasedTransport> inner_;
};

/// Any transport whose messages are in host memory.
using AnyTransport = AnyTransportOf<terse::memory::host>;

}  // namespace terse
