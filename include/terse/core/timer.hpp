// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace terse::detail {

/// A timer that adds its own lifetime to a number of seconds.
class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds), begin_(Clock::now()) {}
  ~Timer() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  double& seconds_;
  Clock::time_point begin_;
};

}  // namespace terse::detail
