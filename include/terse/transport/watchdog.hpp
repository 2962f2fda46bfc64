// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "terse/transport/concept.hpp"

namespace terse {

/// A deadline for a call of another library that waits for other ranks and has neither polling nor callbacks, such as
/// MPI_Init. If it is not destroyed in time, it prints a sentence that names the call and ends the process with status
/// 1, so that a launcher ends the job. `least` is the time that such a call may always take, since most of it is not
/// waiting.
class Watchdog {
 public:
  static constexpr std::chrono::milliseconds least = std::chrono::seconds(5);

  TERSE_COLD Watchdog(const char* call, Deadline deadline, int rank = -1);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  TERSE_COLD ~Watchdog();

 private:
  template <class Work>
  static std::thread start(const char* call, int rank, Work work) {
    try {
      return std::thread(std::move(work));
    } catch (const std::system_error& refusal) {
      throw error("the thread that bounds the wait in " + std::string(call) +
                      " could not be started: " + refusal.what(),
                  rank);
    }
  }

  std::mutex mutex_;
  std::condition_variable returned_;
  bool over_ = false;
  std::thread thread_;  // last, since it uses the other members
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/watchdog.ipp"
#endif
