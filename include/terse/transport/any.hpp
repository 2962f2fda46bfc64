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

/// Any transport of one kind of memory behind one type, so that optimizers are compiled once for all of them, and in units
/// that know no MPI or NCCL:
///
///     terse::AnyTransport transport(terse::Mpi::world());
///     terse::Optimizer<terse::Adam<>, terse::AnyTransport> optimizer{{}, transport, layout};
///
/// Batches allocate nothing. Cost: an indirect call for each batch and each question to its ticket, and for each packet of a
/// mailbox.
///
/// Of a device's memory it may hold Nccl or ThroughHost, and promises what both of them keep: one way for all messages, as
/// if they were in a stream's order, and `synchronize()`, which waits for nothing where they are not.
template <class Memory>
class AnyTransportOf {
  static constexpr bool on_host = std::same_as<Memory, terse::memory::host>;

 public:
  using memory = Memory;
  using Ticket = AnyTicket;
  /// What ThroughHost copies at once is worth more than what alignment is to Nccl.
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

  // Whether T is a transport is asked inside: nvcc would ask it of AnyTransportOf before that is one.
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
  /// As the transport itself gathers: over Nodes not every rank has a way to every other.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) {
    inner_->all_gather(mine, all, phase);
  }
  /// The transport's own collectives, see ReducesNatively; throw usage_error where it has none.
  [[nodiscard]] Ticket reduce_scatter(const float* blocks, float* own, index_t count) {
    return inner_->reduce_scatter(blocks, own, count);
  }
  [[nodiscard]] Ticket all_gather_in_place(std::byte* blocks, index_t bytes) {
    return inner_->all_gather_in_place(blocks, bytes);
  }
  /// Of a transport of two levels; 0 of others.
  int ranks_per_node() const { return inner_->ranks_per_node(); }
  AnyTransportOf split(int color, int key) { return AnyTransportOf(inner_->split(color, key)); }
  /// Throws usage_error where the transport has none.
  Mailbox mailbox(index_t bytes) requires(on_host) { return Mailbox(inner_->mailbox(bytes)); }
  /// See SaysHere. Throws usage_error where the transport has none.
  void here() { inner_->here(); }
  /// Compares with what an executor has; different from none where messages are in no stream's order.
  detail::AnyStream stream() const requires(!on_host) { return inner_->stream(); }
  void synchronize() requires(!on_host) { inner_->synchronize(); }

 private:
  friend class Channel;
  explicit AnyTransportOf(std::unique_ptr<detail::ErasedTransport> inner) : inner_(std::move(inner)) {}
  std::unique_ptr<detail::ErasedTransport> inner_;
};

/// Any transport whose messages lie in the host's memory.
using AnyTransport = AnyTransportOf<terse::memory::host>;

}  // namespace terse
