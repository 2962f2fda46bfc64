// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/levels.hpp"
#include "terse/transport/mailbox.hpp"

namespace terse {

namespace detail {

/// A batch under way of any transport, in place where it fits.
class AnyTicket {
 public:
  template <class K>
  requires(!std::same_as<std::remove_cvref_t<K>, AnyTicket>) explicit AnyTicket(K ticket)
      : does_(&does_of<K>) {
    static_assert(Ticket<K>);
    if constexpr (fits<K>)
      ::new (place()) K(std::move(ticket));
    else
      ::new (place()) K*(new K(std::move(ticket)));
  }
  AnyTicket(AnyTicket&& other) noexcept : does_(std::exchange(other.does_, nullptr)) {
    if (does_ != nullptr) does_->move(place(), other.place());
  }
  AnyTicket& operator=(AnyTicket&& other) noexcept {
    if (this == &other) return *this;
    clear();
    does_ = std::exchange(other.does_, nullptr);
    if (does_ != nullptr) does_->move(place(), other.place());
    return *this;
  }
  ~AnyTicket() { clear(); }

  bool ready() { return does_->ready(place()); }
  void wait() { does_->wait(place()); }
  void wait(Deadline deadline) { does_->wait_until(place(), deadline); }

 private:
  static constexpr std::size_t room = 256;

  struct Does {
    bool (*ready)(void*);
    void (*wait)(void*);
    void (*wait_until)(void*, Deadline);
    void (*move)(void* to, void* from);  // and ends what is at `from`
    void (*end)(void*);
  };
  template <class K>
  static constexpr bool fits = sizeof(K) <= room && alignof(K) <= alignof(std::max_align_t);
  template <class K>
  static K& ticket_at(void* at) {
    if constexpr (fits<K>)
      return *static_cast<K*>(at);
    else
      return **static_cast<K**>(at);
  }
  template <class K>
  static void move(void* to, void* from) {
    if constexpr (fits<K>) {
      ::new (to) K(std::move(ticket_at<K>(from)));
      ticket_at<K>(from).~K();
    } else {
      ::new (to) K*(&ticket_at<K>(from));
    }
  }
  template <class K>
  static void end(void* at) {
    if constexpr (fits<K>)
      ticket_at<K>(at).~K();
    else
      delete &ticket_at<K>(at);
  }
  template <class K>
  static constexpr Does does_of{
      [](void* at) { return ticket_at<K>(at).ready(); }, [](void* at) { ticket_at<K>(at).wait(); },
      [](void* at, Deadline deadline) { ticket_at<K>(at).wait(deadline); }, &move<K>, &end<K>};

  void* place() { return bytes_; }
  void clear() {
    if (does_ != nullptr) does_->end(place());
    does_ = nullptr;
  }

  alignas(std::max_align_t) std::byte bytes_[room];
  const Does* does_;
};

/// The stream that a transport's messages are in the order of, if they are in that of any.
struct AnyStream {
  const void* handle = nullptr;
  bool ordered = false;

  /// Whether the transport can't go with work on another stream, this one.
  friend bool operator!=(const AnyStream& own, const void* other) {
    return own.ordered && own.handle != other;
  }
};

}  // namespace detail

/// Any transport of one kind of memory behind one type, so that optimizers are compiled once for all of them, and in units
/// that know no MPI or NCCL:
///
///     terse::AnyTransport transport(terse::Mpi::world());
///     terse::Optimizer<terse::Adam<>, terse::AnyTransport> optimizer{{}, transport, layout};
///
/// Batches allocate nothing, but for those of decorators around another AnyTransport. Cost: an indirect call for each batch and
/// each question to its ticket, and for each packet of a mailbox.
///
/// Of a device's memory it may hold Nccl or ThroughHost, and promises what both of them keep: one way for all messages, as
/// if they were in a stream's order, and `synchronize()`, which waits for nothing where they are not.
template <class Memory>
class AnyTransportOf {
  static constexpr bool on_host = std::same_as<Memory, terse::memory::host>;
  struct MailboxOf {
    virtual ~MailboxOf() = default;
    virtual void publish(std::span<const std::byte> packet) = 0;
    virtual std::uint64_t fetch(int peer, std::span<std::byte> place) = 0;
  };
  template <terse::Mailbox B>
  struct TheMailbox final : MailboxOf {
    explicit TheMailbox(B mailbox_) : mailbox(std::move(mailbox_)) {}
    void publish(std::span<const std::byte> packet) override { mailbox.publish(packet); }
    std::uint64_t fetch(int peer, std::span<std::byte> place) override { return mailbox.fetch(peer, place); }
    B mailbox;
  };
  struct Inner {
    virtual ~Inner() = default;
    virtual int rank() = 0;
    virtual int size() = 0;
    virtual detail::AnyTicket exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                       Phase phase) = 0;
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) = 0;
    virtual detail::AnyTicket reduce_scatter(const float* blocks, float* own, index_t count) = 0;
    virtual detail::AnyTicket all_gather_in_place(std::byte* blocks, index_t bytes) = 0;
    virtual int ranks_per_node() = 0;
    virtual AnyTransportOf split(int color, int key) = 0;
    virtual detail::AnyStream stream() = 0;
    virtual void synchronize() = 0;
    virtual std::unique_ptr<MailboxOf> mailbox(index_t bytes) = 0;
    virtual void here() = 0;
  };
  template <class T>
  struct TheInner final : Inner {
    explicit TheInner(T transport_) : transport(std::move(transport_)), gather(transport.size()) {}
    int rank() override { return transport.rank(); }
    int size() override { return transport.size(); }
    detail::AnyTicket exchange(std::span<const Send> sends, std::span<const Receive> receives,
                               Phase phase) override {
      return detail::AnyTicket(transport.exchange(sends, receives, phase));
    }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) override {
      detail::gather_host_bytes(transport, gather, mine, all, phase);
    }
    detail::AnyTicket reduce_scatter([[maybe_unused]] const float* blocks, [[maybe_unused]] float* own,
                                     [[maybe_unused]] index_t count) override {
      if constexpr (ReducesNatively<T>)
        return detail::AnyTicket(transport.reduce_scatter(blocks, own, count));
      else
        throw without_collectives();
    }
    detail::AnyTicket all_gather_in_place([[maybe_unused]] std::byte* blocks,
                                          [[maybe_unused]] index_t bytes) override {
      if constexpr (ReducesNatively<T>)
        return detail::AnyTicket(transport.all_gather_in_place(blocks, bytes));
      else
        throw without_collectives();
    }
    int ranks_per_node() override { return detail::node_size(transport); }
    AnyTransportOf split(int color, int key) override { return AnyTransportOf(transport.split(color, key)); }
    detail::AnyStream stream() override {
      if constexpr (requires { transport.stream(); })
        return {transport.stream(), true};
      else
        return {};
    }
    void synchronize() override {
      if constexpr (requires { transport.synchronize(); }) transport.synchronize();
    }
    std::unique_ptr<MailboxOf> mailbox([[maybe_unused]] index_t bytes) override {
      if constexpr (HasMailbox<T>)
        return std::make_unique<TheMailbox<decltype(transport.mailbox(bytes))>>(transport.mailbox(bytes));
      else
        throw usage_error("this transport has no mailbox", rank());
    }
    void here() override {
      if constexpr (SaysHere<T>)
        transport.here();
      else
        throw usage_error(
            "over this transport no rank can say that it is at work: give it a deadline that is longer than "
            "what one rank does alone",
            rank());
    }
    usage_error without_collectives() {
      return usage_error(
          "this transport has no collectives of its own, which Native needs: use ScatterGather or Ring",
          rank());
    }
    T transport;
    detail::HostGather gather;
  };

 public:
  using memory = Memory;
  using Ticket = detail::AnyTicket;
  /// What ThroughHost copies at once is worth more than what alignment is to Nccl.
  static constexpr bool joins_neighbors = !on_host;

  class Mailbox {
   public:
    void publish(std::span<const std::byte> packet) { mailbox_->publish(packet); }
    std::uint64_t fetch(int peer, std::span<std::byte> place) { return mailbox_->fetch(peer, place); }

   private:
    friend class AnyTransportOf;
    explicit Mailbox(std::unique_ptr<MailboxOf> mailbox) : mailbox_(std::move(mailbox)) {}
    std::unique_ptr<MailboxOf> mailbox_;
  };

  // Whether T is a transport is asked inside: nvcc would ask it of AnyTransportOf before that is one.
  template <class T>
  requires(!std::same_as<T, AnyTransportOf>) explicit AnyTransportOf(T transport)
      : inner_(std::make_unique<TheInner<T>>(std::move(transport))) {
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
  AnyTransportOf split(int color, int key) { return inner_->split(color, key); }
  /// Throws usage_error where the transport has none.
  Mailbox mailbox(index_t bytes) requires(on_host) { return Mailbox(inner_->mailbox(bytes)); }
  /// See SaysHere. Throws usage_error where the transport has none.
  void here() { inner_->here(); }
  /// Compares with what an executor has; different from none where messages are in no stream's order.
  detail::AnyStream stream() const requires(!on_host) { return inner_->stream(); }
  void synchronize() requires(!on_host) { inner_->synchronize(); }

 private:
  std::unique_ptr<Inner> inner_;
};

/// Any transport whose messages lie in the host's memory.
using AnyTransport = AnyTransportOf<terse::memory::host>;

}  // namespace terse
