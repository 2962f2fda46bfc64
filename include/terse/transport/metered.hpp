// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "terse/transport/mailbox.hpp"

namespace terse {

/// What went through a rank's transport and its channels, by phase.
struct Traffic {
  struct Count {
    std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
  };
  std::array<Count, phases> by_phase;
  double seconds = 0;  ///< inside `exchange`, `ready`, `wait`, mailboxes: the time that was not hidden

  const Count& operator[](Phase phase) const { return by_phase[static_cast<std::size_t>(phase)]; }
  std::uint64_t bytes_sent() const {
    std::uint64_t bytes = 0;
    for (const Count& count : by_phase) bytes += count.bytes_sent;
    return bytes;
  }
};

namespace detail {

/// Adds its own lifetime to the seconds of a traffic.
class TrafficClock {
 public:
  explicit TrafficClock(Traffic& traffic) : traffic_(traffic), begin_(std::chrono::steady_clock::now()) {}
  ~TrafficClock() {
    traffic_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  TrafficClock(const TrafficClock&) = delete;
  TrafficClock& operator=(const TrafficClock&) = delete;

 private:
  Traffic& traffic_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace detail

/// A mailbox of Metered's. A packet that is fetched counts as one message received, in phase `spread`; publishing
/// sends nothing. The time of both counts.
template <Mailbox Inner>
class MeteredMailbox {
 public:
  MeteredMailbox(Inner inner, std::shared_ptr<Traffic> traffic)
      : inner_(std::move(inner)), traffic_(std::move(traffic)) {}

  void publish(std::span<const std::byte> packet) {
    const detail::TrafficClock clock(*traffic_);
    inner_.publish(packet);
  }
  std::uint64_t fetch(int peer, std::span<std::byte> place) {
    const detail::TrafficClock clock(*traffic_);
    const std::uint64_t version = inner_.fetch(peer, place);
    if (version > 0) {
      Traffic::Count& count = traffic_->by_phase[static_cast<std::size_t>(Phase::spread)];
      count.bytes_received += place.size();
      ++count.messages_received;
    }
    return version;
  }

 private:
  Inner inner_;
  std::shared_ptr<Traffic> traffic_;
};

/// Counts what an inner transport moves. Channels split from it count into the same `traffic()`.
template <Transport Inner>
class Metered {
  using Clock = detail::TrafficClock;

 public:
  using memory = typename Inner::memory;

  class Ticket {
   public:
    Ticket(typename Inner::Ticket inner, Traffic& traffic) : inner_(std::move(inner)), traffic_(&traffic) {}
    bool ready() {
      const Clock clock(*traffic_);
      return inner_.ready();
    }
    template <class... Deadline>
    void wait(Deadline... deadline) {
      const Clock clock(*traffic_);
      inner_.wait(deadline...);
    }

   private:
    typename Inner::Ticket inner_;
    Traffic* traffic_;
  };

  explicit Metered(Inner inner) : inner_(std::move(inner)), traffic_(std::make_shared<Traffic>()) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  const Traffic& traffic() const { return *traffic_; }
  auto stream() const requires requires(const Inner& inner) { inner.stream(); }
  { return inner_.stream(); }

  [[nodiscard]] Ticket exchange(std::span<const Send> sends, std::span<const Receive> receives, Phase phase) {
    const Clock clock(*traffic_);
    Traffic::Count& count = traffic_->by_phase[static_cast<std::size_t>(phase)];
    for (const Send& send : sends) {
      count.bytes_sent += static_cast<std::uint64_t>(send.bytes);
      ++count.messages_sent;
    }
    for (const Receive& receive : receives) {
      count.bytes_received += static_cast<std::uint64_t>(receive.bytes);
      ++count.messages_received;
    }
    return Ticket(inner_.exchange(sends, receives, phase), *traffic_);
  }
  /// Counts as one message to and one from each peer, as `Assembly` over other transports does.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  Phase phase) requires GathersHostBytes<Inner> {
    const Clock clock(*traffic_);
    Traffic::Count& count = traffic_->by_phase[static_cast<std::size_t>(phase)];
    const auto peers = static_cast<std::uint64_t>(size() - 1);
    count.bytes_sent += peers * mine.size();
    count.bytes_received += peers * mine.size();
    count.messages_sent += peers;
    count.messages_received += peers;
    inner_.all_gather(mine, all, phase);
  }
  /// Waits for what the inner transport has enqueued.
  void synchronize() requires requires(Inner& inner) { inner.synchronize(); }
  {
    const Clock clock(*traffic_);
    inner_.synchronize();
  }
  Metered split(int color, int key) { return Metered(inner_.split(color, key), traffic_); }
  /// As the inner transport's, where it works in the order of a stream.
  template <class Stream>
  Metered split(int color, int key, Stream stream) requires requires(Inner& inner) {
    inner.split(color, key, stream);
  }
  { return Metered(inner_.split(color, key, stream), traffic_); }
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
  auto mailbox(index_t bytes) requires HasMailbox<Inner> {
    return MeteredMailbox(inner_.mailbox(bytes), traffic_);
  }

 private:
  Metered(Inner inner, std::shared_ptr<Traffic> traffic)
      : inner_(std::move(inner)), traffic_(std::move(traffic)) {}

  Inner inner_;
  std::shared_ptr<Traffic> traffic_;
};

}  // namespace terse
