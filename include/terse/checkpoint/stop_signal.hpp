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

// Requests to stop a run on all ranks after the same step:
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

/// The exit status of a program that has saved after a request to stop, and can resume: EX_TEMPFAIL of sysexits.h.
inline constexpr int stopped_status = 75;

namespace detail {

inline std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal's handler must not wait");

extern "C" inline void note_signal(int signal) { received_signal.store(signal, std::memory_order_relaxed); }

}  // namespace detail

/// A catcher of signals. While this object lives, these signals don't end the process but are recorded, for all
/// threads. The default is the signals that schedulers send before they take a machine away: SIGTERM, and SIGUSR1 as
/// in SLURM's `--signal`. System calls that a signal interrupts are restarted. Construction forgets an earlier
/// signal. Throws usage_error for signals that can't be caught.
class StopSignals {
 public:
  explicit StopSignals(std::initializer_list<int> numbers = {SIGTERM, SIGUSR1});
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() { put_back(); }

  /// Returns the last signal that this process has received, or 0.
  static int received() { return detail::received_signal.load(std::memory_order_relaxed); }

 private:
  void put_back() {
    for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
  }

  std::vector<std::pair<int, struct sigaction>> before_;
};

/// A check, between steps, whether any rank's process has received a signal. All ranks must call it equally often.
/// They get the same answer, so that all stop after the same step.
///
/// Ranks communicate about once in a `period` (0: in each call). The number of calls until the next communication is
/// the number that fits into a period on the slowest rank, by the time of the previous calls. It is at most twice the
/// last number. Then each rank sends W - 1 messages of 12 bytes; other calls cost a subtraction. So ranks that
/// otherwise don't synchronize wait for each other once in a period. An answer comes up to a period after the signal,
/// or later if steps have become slower meanwhile.
template <Transport T>
class StopRequest {
 public:
  /// Construction is collective, and makes a separate channel.
  explicit StopRequest(T& transport, std::chrono::milliseconds period = std::chrono::milliseconds(250))
      : channel_(transport.split(0, transport.rank())), everyone_(channel_), period_(period) {}

  /// Returns the signal of the lowest rank that has received one, or 0. Collective. Throws what the transport throws;
  /// allocates nothing.
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

  /// Returns the number of calls in a period at their recent duration.
  std::int32_t wanted() const {
    const std::chrono::duration<double> taken = Clock::now() - last_, period = period_;
    const double most = std::min(2.0 * calls_, 1e9);
    return static_cast<std::int32_t>(std::max(1.0, std::min(most, period * calls_ / taken)));
  }

  T channel_;
  Assembly<Word, T> everyone_;
  std::chrono::milliseconds period_;
  Clock::time_point last_ = Clock::now();
  std::int32_t calls_ = 1, left_ = 1;  // calls between two agreements, and calls until the next one
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/stop_signal.ipp"
#endif
