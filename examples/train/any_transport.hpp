// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <span>
#include <utility>

#include "terse/transport/concept.hpp"

namespace train {

/// Any transport of host memory behind one type, so that optimizers are compiled once, and without MPI. An indirect
/// call and an allocation for each batch.
class AnyTransport {
  struct TicketOf {
    virtual ~TicketOf() = default;
    virtual bool ready() = 0;
    virtual void wait() = 0;
    virtual void wait(std::chrono::milliseconds deadline) = 0;
  };
  template <terse::Ticket K>
  struct TheTicket final : TicketOf {
    explicit TheTicket(K ticket_) : ticket(std::move(ticket_)) {}
    bool ready() override { return ticket.ready(); }
    void wait() override { ticket.wait(); }
    void wait(std::chrono::milliseconds deadline) override { ticket.wait(deadline); }
    K ticket;
  };
  struct Inner {
    virtual ~Inner() = default;
    virtual int rank() = 0;
    virtual int size() = 0;
    virtual std::unique_ptr<TicketOf> exchange(std::span<const terse::Send> sends,
                                               std::span<const terse::Receive> receives,
                                               terse::Phase phase) = 0;
    virtual AnyTransport split(int color, int key) = 0;
  };
  template <terse::Transport T>
  struct TheInner final : Inner {
    explicit TheInner(T transport_) : transport(std::move(transport_)) {}
    int rank() override { return transport.rank(); }
    int size() override { return transport.size(); }
    std::unique_ptr<TicketOf> exchange(std::span<const terse::Send> sends,
                                       std::span<const terse::Receive> receives,
                                       terse::Phase phase) override {
      auto ticket = transport.exchange(sends, receives, phase);
      return std::make_unique<TheTicket<decltype(ticket)>>(std::move(ticket));
    }
    AnyTransport split(int color, int key) override { return AnyTransport(transport.split(color, key)); }
    T transport;
  };

 public:
  using memory = terse::memory::host;

  class Ticket {
   public:
    bool ready() { return ticket_->ready(); }
    void wait() { ticket_->wait(); }
    void wait(std::chrono::milliseconds deadline) { ticket_->wait(deadline); }

   private:
    friend class AnyTransport;
    explicit Ticket(std::unique_ptr<TicketOf> ticket) : ticket_(std::move(ticket)) {}
    std::unique_ptr<TicketOf> ticket_;
  };

  // Whether T is a transport is asked inside: nvcc would ask it of AnyTransport before that is one.
  template <class T>
  requires(!std::same_as<T, AnyTransport>) explicit AnyTransport(T transport)
      : inner_(std::make_unique<TheInner<T>>(std::move(transport))) {
    static_assert(terse::Transport<T> && std::same_as<typename T::memory, memory>);
  }

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }
  [[nodiscard]] Ticket exchange(std::span<const terse::Send> sends, std::span<const terse::Receive> receives,
                                terse::Phase phase) {
    return Ticket(inner_->exchange(sends, receives, phase));
  }
  AnyTransport split(int color, int key) { return inner_->split(color, key); }

 private:
  std::unique_ptr<Inner> inner_;
};

}  // namespace train
