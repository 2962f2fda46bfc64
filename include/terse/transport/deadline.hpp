// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "terse/core/error.hpp"

namespace terse {

/// Longest time that a wait may take, from a duration of any unit. More than a year counts as a year, because clocks,
/// and the conversion from hours or seconds to milliseconds, would overflow.
class Deadline {
 public:
  static constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);

  template <class Count, class Unit>
  constexpr Deadline(std::chrono::duration<Count, Unit> time)  // NOLINT: used in place of a duration
      : milliseconds_(in_range(time)) {}
  constexpr operator std::chrono::milliseconds() const { return milliseconds_; }  // NOLINT: and is one

  constexpr auto count() const { return milliseconds_.count(); }

 private:
  template <class Count, class Unit>
  static constexpr std::chrono::milliseconds in_range(std::chrono::duration<Count, Unit> time) {
    const std::chrono::duration<double> seconds = time, most = longest;
    if (seconds > most) return longest;
    if (!(seconds > -most)) return -longest;
    return time > time.zero() ? std::chrono::ceil<std::chrono::milliseconds>(time)
                              : std::chrono::floor<std::chrono::milliseconds>(time);
  }

  std::chrono::milliseconds milliseconds_;
};

namespace detail {

/// Returns the end of a wait that begins now.
inline std::chrono::steady_clock::time_point time_after(Deadline deadline) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline);
}

/// Returns the time that is left, at least 0.
inline std::chrono::milliseconds time_left(Deadline deadline) {
  return std::max(std::chrono::milliseconds(deadline), std::chrono::milliseconds(0));
}

/// Returns the error text for a deadline of 0 or less, which no wait could meet.
TERSE_COLD std::string deadline_fault(Deadline deadline);

/// Returns the deadline of a transport's waits. Throws usage_error if it is 0 or less.
inline std::chrono::milliseconds positive(Deadline deadline, int rank = -1) {
  if (deadline.count() > 0) return deadline;
  throw usage_error(deadline_fault(deadline), rank);
}

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/deadline.ipp"
#endif
