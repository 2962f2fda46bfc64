// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/deadline.hpp"
#include "terse/transport/levels.hpp"
#include "terse/transport/mailbox.hpp"

// Type-erased transports: one indirect call for each batch, and one for each query of its ticket.

namespace terse::detail {

/// A batch in flight of any transport, in a place that is reused for one batch after another.
struct ErasedBatch {
  virtual ~ErasedBatch() = default;
  virtual bool ready() = 0;
  virtual void wait() = 0;
  virtual void wait(Deadline deadline) = 0;
  virtual void abandon() = 0;
  virtual int awaited() = 0;
};
template <Ticket K>
struct ErasedBatchOf final : ErasedBatch {
  bool ready() override { return ticket->ready(); }
  void wait() override { ticket->wait(); }
  void wait(Deadline deadline) override { ticket->wait(deadline); }
  void abandon() override { ticket.reset(); }
  int awaited() override {
    if constexpr (KnowsAwaited<K>) return ticket->awaited();
    return -1;
  }
  std::optional<K> ticket;
};

/// Ticket of a type-erased transport's batch. Returns the batch's place for reuse when the batch is done, even if the
/// ticket is kept.
class AnyTicket {
 public:
  explicit AnyTicket(std::shared_ptr<ErasedBatch> batch) : batch_(std::move(batch)) {}
  AnyTicket(AnyTicket&& other) noexcept = default;
  AnyTicket& operator=(AnyTicket&& other) noexcept {
    if (this == &other) return *this;
    abandon();
    batch_ = std::move(other.batch_);
    return *this;
  }
  ~AnyTicket() { abandon(); }

  bool ready() {
    if (batch_ && batch_->ready()) abandon();
    return !batch_;
  }
  void wait() {
    if (batch_) batch_->wait();
    abandon();
  }
  void wait(Deadline deadline) {
    if (batch_) batch_->wait(deadline);
    abandon();
  }
  /// See KnowsAwaited.
  int awaited() { return batch_ ? batch_->awaited() : -1; }

 private:
  void abandon() {
    if (batch_) batch_->abandon();
    batch_.reset();
  }
  std::shared_ptr<ErasedBatch> batch_;
};

/// Places of batches. They allocate nothing for two batches in flight, nor for as many as were in flight before.
template <Ticket K>
class Batches {
 public:
  TERSE_COLD Batches() {
    for (int k = 0; k < 2; ++k) places_.push_back(std::make_shared<ErasedBatchOf<K>>());
  }
  AnyTicket operator()(K ticket) {
    auto place =
        std::find_if(places_.begin(), places_.end(), [](const auto& one) { return one.use_count() == 1; });
    if (place == places_.end()) place = places_.insert(place, std::make_shared<ErasedBatchOf<K>>());
    (*place)->ticket.emplace(std::move(ticket));
    return AnyTicket(*place);
  }

 private:
  std::vector<std::shared_ptr<ErasedBatchOf<K>>> places_;
};

/// The stream whose order a transport's messages keep, if any.
struct AnyStream {
  const void* handle = nullptr;
  bool ordered = false;

  /// Checks whether the transport can't be used with work on another stream, `other`.
  friend bool operator!=(const AnyStream& own, const void* other) {
    return own.ordered && own.handle != other;
  }
};

template <class T, class Stream>
concept SaysStream = requires(const T& transport) {
  { transport.stream() } -> std::convertible_to<Stream>;
};

struct AnyMailbox {
  virtual ~AnyMailbox() = default;
  virtual void publish(std::span<const std::byte> packet) = 0;
  virtual std::uint64_t fetch(int peer, std::span<std::byte> place) = 0;
};
template <Mailbox B>
struct AnyMailboxOf final : AnyMailbox {
  explicit AnyMailboxOf(B mailbox_) : mailbox(std::move(mailbox_)) {}
  void publish(std::span<const std::byte> packet) override { mailbox.publish(packet); }
  std::uint64_t fetch(int peer, std::span<std::byte> place) override { return mailbox.fetch(peer, place); }
  B mailbox;
};

/// All operations that any transport has. Those that this transport lacks throw usage_error.
struct ErasedTransport {
  virtual ~ErasedTransport() = default;
  virtual int rank() = 0;
  virtual int size() = 0;
  virtual AnyTicket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) = 0;
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) = 0;
  virtual AnyTicket reduce_scatter(const float* blocks, float* own, index_t count) = 0;
  virtual AnyTicket all_gather_in_place(std::byte* blocks, index_t bytes) = 0;
  virtual std::unique_ptr<ErasedTransport> split(int color, int key) = 0;
  virtual int ranks_per_node() = 0;
  /// Makes the channels of the two levels, see inside_of and across_of.
  virtual std::unique_ptr<ErasedTransport> inside(int width) = 0;
  virtual std::unique_ptr<ErasedTransport> across(int width) = 0;
  virtual bool joins_neighbors() = 0;
  virtual bool in_stream_order() = 0;
  virtual AnyStream stream() = 0;
  virtual void synchronize() = 0;
  virtual std::unique_ptr<AnyMailbox> mailbox(index_t bytes) = 0;
  virtual void here() = 0;
};

template <class T>
class Erased final : public ErasedTransport {
 public:
  explicit Erased(T transport) : own_(std::move(transport)), transport_(*own_), gather_(transport_.size()) {}
  /// Refers to a transport that stays in place.
  explicit Erased(T* transport) : transport_(*transport), gather_(transport_.size()) {}

  int rank() override { return transport_.rank(); }
  int size() override { return transport_.size(); }
  AnyTicket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) override {
    return batches_(transport_.exchange(sends, receives, phase));
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Phase phase) override {
    gather_host_bytes(transport_, gather_, mine, all, phase);
  }
  AnyTicket reduce_scatter([[maybe_unused]] const float* blocks, [[maybe_unused]] float* own,
                           [[maybe_unused]] index_t count) override {
    if constexpr (ReducesNatively<T>)
      return batches_(transport_.reduce_scatter(blocks, own, count));
    else
      throw without_collectives();
  }
  AnyTicket all_gather_in_place([[maybe_unused]] std::byte* blocks, [[maybe_unused]] index_t bytes) override {
    if constexpr (ReducesNatively<T>)
      return batches_(transport_.all_gather_in_place(blocks, bytes));
    else
      throw without_collectives();
  }
  std::unique_ptr<ErasedTransport> split(int color, int key) override {
    return erased(transport_.split(color, key));
  }
  int ranks_per_node() override { return node_size(transport_); }
  std::unique_ptr<ErasedTransport> inside(int width) override { return erased(inside_of(transport_, width)); }
  std::unique_ptr<ErasedTransport> across(int width) override { return erased(across_of(transport_, width)); }
  bool joins_neighbors() override { return detail::joins_neighbors<T>(); }
  bool in_stream_order() override { return detail::in_stream_order<T>; }
  AnyStream stream() override {
    if constexpr (SaysStream<T, AnyStream>)
      return transport_.stream();
    else if constexpr (SaysStream<T, const void*>)
      return {transport_.stream(), true};
    else
      return {};
  }
  void synchronize() override { await_messages(transport_); }
  std::unique_ptr<AnyMailbox> mailbox([[maybe_unused]] index_t bytes) override {
    if constexpr (HasMailbox<T>)
      return std::make_unique<AnyMailboxOf<decltype(transport_.mailbox(bytes))>>(transport_.mailbox(bytes));
    else
      throw usage_error("this transport has no mailbox", rank());
  }
  void here() override {
    if constexpr (SaysHere<T>)
      transport_.here();
    else
      throw usage_error(
          "this transport has no here(), so a rank can't report that it is busy: set a deadline longer than "
          "the work of one rank alone",
          rank());
  }

 private:
  template <class Other>
  static std::unique_ptr<ErasedTransport> erased(Other other) {
    return std::make_unique<Erased<Other>>(std::move(other));
  }
  TERSE_COLD usage_error without_collectives() {
    return usage_error(
        "this transport has no collectives of its own, which Native needs: use ScatterGather or Ring",
        rank());
  }

  std::optional<T> own_;
  T& transport_;
  HostGather gather_;
  Batches<TicketOf<T>> batches_;
};

}  // namespace terse::detail
