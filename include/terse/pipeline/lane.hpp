// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "terse/core/view.hpp"
#include "terse/transport/concept.hpp"

namespace terse::detail {

/// The messages of a step from one neighbour, or to it, in order: message j lies in slot j % window. A receive is posted
/// `window` messages ahead, so that no sender waits for a stage that is busy; a send is waited for when its slot is
/// wanted again.
template <Transport T>
class Lane {
  using Ticket = decltype(std::declval<T&>().exchange({}, {}, Phase::setup));

 public:
  static constexpr int most = 8;  // that a channel of threads carries at once

  /// To or from `peer`, messages of up to `largest` bytes.
  Lane(int peer, index_t largest, int window, Phase phase)
      : peer_(peer), window_(window), largest_(aligned(largest)), phase_(phase), slots_(largest_ * window) {}

  std::byte* slot(index_t j) { return slots_.data() + j % window_ * largest_; }

  /// Posts receives for the first of `count` messages.
  void open(T& channel, index_t count) {
    count_ = count;
    for (index_t j = 0; j < std::min<index_t>(window_, count); ++j) post(channel, j);
  }
  /// Waits for message j, which stays until `release`.
  void take(index_t j) { settle(j); }
  /// Has no use for message j any more.
  void release(T& channel, index_t j) {
    if (j + window_ < count_) post(channel, j + window_);
  }

  /// Waits until slot(j) may be written.
  void prepare(index_t j) { settle(j); }
  void send(T& channel, index_t j, index_t bytes) {
    const auto k = static_cast<std::size_t>(j % window_);
    sends_[k] = {peer_, slot(j), bytes, largest_};
    tickets_[k].emplace(channel.exchange(std::span<const Send>(&sends_[k], 1), {}, phase_));
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
  void post(T& channel, index_t j) {
    const auto k = static_cast<std::size_t>(j % window_);
    receives_[k] = {peer_, slot(j), largest_, true};
    tickets_[k].emplace(channel.exchange({}, std::span<const Receive>(&receives_[k], 1), phase_));
  }
  void settle(index_t j) {
    std::optional<Ticket>& ticket = tickets_[static_cast<std::size_t>(j % window_)];
    if (!ticket) return;
    ticket->wait();
    ticket.reset();
  }

  int peer_, window_;
  index_t largest_, count_ = 0;
  Phase phase_;
  buffer<std::byte, typename T::memory> slots_;
  std::array<Send, most> sends_{};
  std::array<Receive, most> receives_{};
  std::array<std::optional<Ticket>, most> tickets_;
};

}  // namespace terse::detail
