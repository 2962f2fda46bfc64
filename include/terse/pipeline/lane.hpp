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

inline constexpr int most_in_lane = 8;  // messages that a channel of threads carries at once

template <Transport T>
class Lane;

/// A transport whose messages work in the order of a stream, so that the host doesn't wait for them.
template <class T>
concept InStreamOrder = requires(const T& transport) {
  transport.stream();
};

/// What the messages of a pipeline go through: here a channel of all stages for each direction.
template <Transport T, Executor E>
class Lanes {
  static_assert(!InStreamOrder<T>,
                "terse: messages of this transport work in a stream's order, where each lane needs a stream "
                "and a channel of its own; include terse/pipeline/nccl_lanes.hpp");

 public:
  using Lane = detail::Lane<T>;
  /// Whether both sides must know the length of each message.
  static constexpr bool exact = false;

  Lanes(T& transport, const E&)
      : forward_(transport.split(0, transport.rank())), backward_(transport.split(0, transport.rank())) {}

  /// Where all stages agree.
  T& channel() { return forward_; }
  T& channel(Phase phase) { return phase == Phase::forward ? forward_ : backward_; }

 private:
  T forward_, backward_;
};

/// The messages of a step from one neighbour, or to it, in order: message j lies in slot j % window. A receive is posted
/// `window` messages ahead, so that a sender need not wait for a stage that is busy, where the transport moves bytes by
/// itself; a send is waited for when its slot is wanted again.
template <Transport T>
class Lane {
  using Ticket = decltype(std::declval<T&>().exchange({}, {}, Phase::setup));

 public:
  /// To or from `peer`, messages of up to `largest` bytes.
  template <Executor E>
  Lane(Lanes<T, E>& all, int peer, index_t largest, int window, Phase phase)
      : channel_(&all.channel(phase)),
        peer_(peer),
        window_(window),
        largest_(aligned(largest)),
        phase_(phase),
        slots_(largest_ * window, unwritten) {}

  std::byte* slot(index_t j) { return slots_.data() + j % window_ * largest_; }

  /// Posts receives for the first of `count` messages; `bytes(j)` is the length of message j, for lanes that must know.
  template <class Bytes>
  void open(index_t count, const Bytes&) {
    count_ = count;
    for (index_t j = 0; j < std::min<index_t>(window_, count); ++j) post(j);
  }
  /// Waits for message j, which stays until `release`.
  void take(index_t j) { settle(j); }
  /// Has no use for message j any more.
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
  /// Waits until all that was sent is.
  void drain() {
    for (index_t k = 0; k < window_; ++k) settle(k);
  }
  /// Lets go of what is under way.
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
