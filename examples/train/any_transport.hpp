// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "terse/transport/board.hpp"

namespace train {

/// Any transport of host memory behind one type, so that optimizers are compiled once, and without MPI. An indirect
/// call and an allocation for each batch, an indirect call for each packet of a board.
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
  struct BoardOf {
    virtual ~BoardOf() = default;
    virtual void publish(std::span<const std::byte> packet) = 0;
    virtual std::uint64_t fetch(int peer, std::span<std::byte> place) = 0;
  };
  template <terse::Board B>
  struct TheBoard final : BoardOf {
    explicit TheBoard(B board_) : board(std::move(board_)) {}
    void publish(std::span<const std::byte> packet) override { board.publish(packet); }
    std::uint64_t fetch(int peer, std::span<std::byte> place) override { return board.fetch(peer, place); }
    B board;
  };
  struct Inner {
    virtual ~Inner() = default;
    virtual int rank() = 0;
    virtual int size() = 0;
    virtual std::unique_ptr<TicketOf> exchange(std::span<const terse::Send> sends,
                                               std::span<const terse::Receive> receives,
                                               terse::Phase phase) = 0;
    virtual AnyTransport split(int color, int key) = 0;
    virtual std::unique_ptr<BoardOf> board(terse::index_t bytes) = 0;
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
    std::unique_ptr<BoardOf> board([[maybe_unused]] terse::index_t bytes) override {
      if constexpr (terse::HasBoard<T>)
        return std::make_unique<TheBoard<decltype(transport.board(bytes))>>(transport.board(bytes));
      else
        throw terse::usage_error("this transport has no board", rank());
    }
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

  class Board {
   public:
    void publish(std::span<const std::byte> packet) { board_->publish(packet); }
    std::uint64_t fetch(int peer, std::span<std::byte> place) { return board_->fetch(peer, place); }

   private:
    friend class AnyTransport;
    explicit Board(std::unique_ptr<BoardOf> board) : board_(std::move(board)) {}
    std::unique_ptr<BoardOf> board_;
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
  /// Throws usage_error where the transport has none.
  Board board(terse::index_t bytes) { return Board(inner_->board(bytes)); }

 private:
  std::unique_ptr<Inner> inner_;
};

}  // namespace train
