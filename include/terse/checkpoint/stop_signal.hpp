// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/call.hpp"

// How a run is asked to stop, and stops on all ranks after the same step:
//
//     terse::checkpoint::StopSignals signals;              // once in a process, before it begins
//     ...
//     terse::checkpoint::StopRequest stop(transport);      // on each rank
//     while (...) {
//       optimizer.step(parameters, gradients);
//       if (stop.asked()) {
//         folder.save(optimizer, parameters);
//         return terse::checkpoint::stopped_status;
//       }
//     }

namespace terse::checkpoint {

/// What a program returns that was asked to stop, has saved, and can go on: EX_TEMPFAIL of sysexits.h.
inline constexpr int stopped_status = 75;

namespace detail {

inline std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal's handler must not wait");

extern "C" inline void note_signal(int signal) { received_signal.store(signal, std::memory_order_relaxed); }

}  // namespace detail

/// While it lives, these signals no longer end the process but are noted, for all its threads. By default what schedulers
/// send before they take a machine away: SIGTERM, and SIGUSR1 as in SLURM's `--signal`. System calls that a signal
/// interrupts go on. One that was noted before is forgotten. Throws usage_error for what can't be caught.
class StopSignals {
 public:
  explicit StopSignals(std::initializer_list<int> numbers = {SIGTERM, SIGUSR1});
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() { put_back(); }

  /// The last one that this process has had, or 0.
  static int received() { return detail::received_signal.load(std::memory_order_relaxed); }

 private:
  void put_back() {
    for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
  }

  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Asks, between steps, whether any rank's process has had a signal. All ranks call alike and get the same answer, so that
/// all stop after the same step.
///
/// Ranks talk to each other about once in a `period` (0: in each call): after as many calls as fit into one on the slowest of
/// them, by the time of the calls before, and at most twice as many as the last time. Then each sends W - 1 messages of 12
/// bytes; a call between is a subtraction. So ranks that step on their own wait for each other once in a period, and an
/// answer comes up to a period after the signal, or later where steps have become slower meanwhile.
template <Transport T>
class StopRequest {
 public:
  /// Collective; takes a channel of its own.
  explicit StopRequest(T& transport, std::chrono::milliseconds period = std::chrono::milliseconds(250))
      : channel_(transport.split(0, transport.rank())), everyone_(channel_), period_(period) {}

  /// The signal, of the lowest rank that has had one, or 0. Collective. Throws what the transport throws; allocates nothing.
  int asked() {
    if (--left_ > 0) return 0;
    const terse::detail::Call call(terse::detail::Verb::stop_request);
    int signal = 0;
    std::int32_t calls = std::numeric_limits<std::int32_t>::max();
    for (const Word& one : everyone_(channel_, Word{StopSignals::received(), wanted()}, Phase::agree)) {
      if (signal == 0) signal = one.signal;
      calls = std::min(calls, one.calls);
    }
    calls_ = left_ = calls;
    last_ = Clock::now();
    return signal;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Word {
    std::int32_t signal, calls;
  };

  /// Calls in a period, as long as they have been taking.
  std::int32_t wanted() const {
    const std::chrono::duration<double> taken = Clock::now() - last_, period = period_;
    const double most = std::min(2.0 * calls_, 1e9);
    return static_cast<std::int32_t>(std::max(1.0, std::min(most, period * calls_ / taken)));
  }

  T channel_;
  Assembly<Word, T> everyone_;
  std::chrono::milliseconds period_;
  Clock::time_point last_ = Clock::now();
  std::int32_t calls_ = 1, left_ = 1;  // from one agreement to the next, and to the next from now
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/stop_signal.ipp"
#endif
