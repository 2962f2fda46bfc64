// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace terse::detail {

/// Pause between polls of a loop that waits for other ranks: it yields for 50 us, then sleeps for 20 us and later up to
/// 100 us. If many ranks polled all the time, they would keep the locks of drivers from ranks that work.
class Backoff {
  using Clock = std::chrono::steady_clock;

 public:
  void operator()() {
    if (Clock::now() < patient_from_) return std::this_thread::yield();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, std::chrono::microseconds(100));
  }

 private:
  Clock::time_point patient_from_ = Clock::now() + std::chrono::microseconds(50);
  std::chrono::microseconds pause_{20};
};

}  // namespace terse::detail
