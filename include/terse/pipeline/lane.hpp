// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "terse/core/view.hpp"
#include "terse/executor/concept.hpp"
#include "terse/transport/concept.hpp"

namespace terse::detail {

inline constexpr int most_in_lane = 8;  // messages in flight on a channel of threads

template <Transport T>
class Lane;

/// A transport whose messages are ordered by a stream, so that the host doesn't wait for them.
template <class T>
concept InStreamOrder = requires(const T& transport) {
  transport.stream();
};

/// The channels of a pipeline's messages: here a channel of all stages for each direction.
template <Transport T, Executor E>
class Lanes {
  static_assert(!InStreamOrder<T>,
                "terse: messages of this transport work in a stream's order, where each lane needs a stream "
                "and a channel of its own; include terse/pipeline/nccl_lanes.hpp");

 public:
  using Lane = detail::Lane<T>;
  /// True if both sides must know the length of each message.
  static constexpr bool exact = false;

  Lanes(T& transport, const E&)
      : forward_(transport.split(0, transport.rank())), backward_(transport.split(0, transport.rank())) {}

  /// Returns the channel on which all stages agree.
  T& channel() { return forward_; }
  T& channel(Phase phase) { return phase == Phase::forward ? forward_ : backward_; }

 private:
  T forward_, backward_;
};

/// The messages of a step from one neighbour, or to it, in order: message j is in slot j % window. Receives are posted
/// `window` messages ahead, so a sender does not wait for a busy stage if the transport moves bytes without calls. The
/// sender waits for a send when it needs the slot again.
template <Transport T>
class Lane {
  using Ticket = decltype(std::declval<T&>().exchange({}, {}, Phase::setup));

 public:
  /// Creates a lane to or from `peer` for messages of up to `largest` bytes.
  template <Executor E>
  Lane(Lanes<T, E>& all, int peer, index_t largest, int window, Phase phase)
      : channel_(&all.channel(phase)),
        peer_(peer),
        window_(window),
        largest_(aligned(largest)),
        phase_(phase),
        slots_(largest_ * window, uninitialized) {}

  std::byte* slot(index_t j) { return slots_.data() + j % window_ * largest_; }

  /// Posts receives for the first of `count` messages; `bytes(j)` is the length of message j, for lanes that need it.
  template <class Bytes>
  void open(index_t count, const Bytes&) {
    count_ = count;
    for (index_t j = 0; j < std::min<index_t>(window_, count); ++j) post(j);
  }
  /// Waits for message j, which is valid until `release`.
  void take(index_t j) { settle(j); }
  /// Frees the slot of message j for a later message.
  template <class Bytes>
  void release(index_t j, const Bytes&) {
    if (j + window_ < count_) post(j + window_);
  }

  /// Waits until slot(j) may be written.
  void prepare(index_t j) { settle(j); }
  void send(index_t j, index_t bytes) {
    const auto k = static_cast<std::size_t>(j % window_);
    sends_[k] = {peer_, slot(j), bytes, largest_};
    tickets_[k].emplace(channel_->exchange(std::span<const Send>(&sends_[k], 1), {}, phase_));
  }
  /// Waits until all sends are complete.
  void drain() {
    for (index_t k = 0; k < window_; ++k) settle(k);
  }
  /// Abandons the messages in flight.
  void abandon() {
    for (std::optional<Ticket>& ticket : tickets_) ticket.reset();
  }

 private:
  void post(index_t j) {
    const auto k = static_cast<std::size_t>(j % window_);
    receives_[k] = {peer_, slot(j), largest_, true};
    tickets_[k].emplace(channel_->exchange({}, std::span<const Receive>(&receives_[k], 1), phase_));
  }
  void settle(index_t j) {
    std::optional<Ticket>& ticket = tickets_[static_cast<std::size_t>(j % window_)];
    if (!ticket) return;
    ticket->wait();
    ticket.reset();
  }

  T* channel_;
  int peer_, window_;
  index_t largest_, count_ = 0;
  Phase phase_;
  buffer<std::byte, typename T::memory> slots_;
  std::array<Send, most_in_lane> sends_{};
  std::array<Receive, most_in_lane> receives_{};
  std::array<std::optional<Ticket>, most_in_lane> tickets_;
};

}  // namespace terse::detail
