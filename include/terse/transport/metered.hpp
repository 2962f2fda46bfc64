// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "terse/core/timer.hpp"
#include "terse/transport/forwarding.hpp"

namespace terse {

/// Traffic of a rank's transport and its channels, by phase.
struct Traffic {
  using Count = Load;
  std::array<Count, phases> by_phase;
  double seconds =
      0;  ///< inside `exchange`, `ready`, `wait` and mailboxes: communication that was not hidden

  const Count& operator[](Phase phase) const { return by_phase[static_cast<std::size_t>(phase)]; }
  std::uint64_t bytes_sent() const {
    std::uint64_t bytes = 0;
    for (const Count& count : by_phase) bytes += count.bytes_sent;
    return bytes;
  }
};

namespace detail {

/// A mailbox of Metered. A fetched packet counts as one message received, in phase `spread`; a published packet does
/// not count. The time of both calls counts.
template <Mailbox Inner>
class MeteredMailbox {
 public:
  MeteredMailbox(Inner inner, std::shared_ptr<Traffic> traffic)
      : inner_(std::move(inner)), traffic_(std::move(traffic)) {}

  void publish(std::span<const std::byte> packet) {
    const Timer timer(traffic_->seconds);
    inner_.publish(packet);
  }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    const Timer timer(traffic_->seconds);
    const std::uint64_t version = inner_.fetch(peer, place);
    if (version > 0) {
      traffic_->by_phase[static_cast<std::size_t>(Phase::spread)] += Load{0, place.size(), 0, 1};
    }
    return version;
  }

 private:
  Inner inner_;
  std::shared_ptr<Traffic> traffic_;
};

}  // namespace detail

/// A decorator that counts an inner transport's traffic. Channels split from it count into the same `traffic()`.
template <Transport Inner>
class Metered : public Forwarding<Metered<Inner>, Inner> {
  using Base = Forwarding<Metered<Inner>, Inner>;

 public:
  class Ticket {
   public:
    Ticket(TicketOf<Inner> inner, Traffic& traffic) : inner_(std::move(inner)), traffic_(&traffic) {}
    bool ready() {
      const detail::Timer timer(traffic_->seconds);
      return inner_.ready();
    }
    template <class... Deadline>
    void wait(Deadline... deadline) {
      const detail::Timer timer(traffic_->seconds);
      inner_.wait(deadline...);
    }
    /// See KnowsAwaited.
    int awaited() requires KnowsAwaited<TicketOf<Inner>> { return inner_.awaited(); }

   private:
    TicketOf<Inner> inner_;
    Traffic* traffic_;
  };

  explicit Metered(Inner inner) : Metered(std::move(inner), std::make_shared<Traffic>()) {}

  const Traffic& traffic() const { return *traffic_; }

  template <class Call>
  auto carry(Phase phase, const Load& load, const Call& call) {
    const detail::Timer timer(traffic_->seconds);
    traffic_->by_phase[static_cast<std::size_t>(phase)] += load;
    if constexpr (std::is_void_v<decltype(call())>)
      call();
    else
      return Ticket(call(), *traffic_);
  }
  template <Transport Other>
  Metered<Other> around(Other other) const {
    return Metered<Other>(std::move(other), traffic_);
  }
  auto mailbox(index_t bytes) requires HasMailbox<Inner> {
    return detail::MeteredMailbox(Base::inner_.mailbox(bytes), traffic_);
  }

 private:
  template <Transport>
  friend class Metered;
  Metered(Inner inner, std::shared_ptr<Traffic> traffic)
      : Base(std::move(inner)), traffic_(std::move(traffic)) {}

  std::shared_ptr<Traffic> traffic_;
};

}  // namespace terse
