// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace terse::detail {

/// What a loop does between looks at something that others bring about: at first it is there again at once, after 50 us it
/// sleeps, for 20 us and then up to 100. Many who look all the time would keep the locks of drivers from those who work.
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
