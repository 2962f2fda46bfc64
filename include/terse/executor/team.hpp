// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "terse/core/config.hpp"

namespace terse {

/// A team of threads that run the parts of one loop at a time, and sleep in between. The caller's thread is one of
/// them, and works alone until the others have woken up.
class Team {
 public:
  /// The maximum number of parts of a loop.
  static constexpr int most_parts = 0xFFFF;

  /// Starts threads - 1 threads, which round to nearest and keep subnormal numbers, regardless of the calling thread's
  /// settings. Throws usage_error for less than 1 thread, and error if the system refuses a thread.
  TERSE_COLD explicit Team(int threads);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  TERSE_COLD ~Team();

  int size() const { return size_; }

  /// Calls act(part, thread) once for each part in [0, parts), on any thread in [0, size()); the caller is thread 0.
  /// Parts start in their order. Waits until all have ended, then rethrows the error of the lowest part, if any. If
  /// the team is busy, for another thread or for a part that calls this, the caller runs all parts as thread 0.
  /// Allocates nothing.
  template <class Act>
  void run(int parts, const Act& act) {
    run([](const void* given, int part, int thread) { (*static_cast<const Act*>(given))(part, thread); },
        &act, parts);
  }

  /// Returns the number of processors that the calling thread may run on, at least 1.
  TERSE_COLD static int available();

 private:
  using Call = void (*)(const void*, int, int);

  void run(Call call, const void* act, int parts);
  void work(int thread);
  void take_parts(int thread);
  TERSE_COLD void note_error(int part);
  TERSE_COLD void end();

  const int size_;
  std::atomic<bool> busy_ = false;
  std::atomic<std::uint32_t> turn_ = 0;  // twice the number of started loops; odd once the team ends
  std::atomic<std::uint64_t> next_ =
      0;  // the turn, the number of parts, and the next part that no thread has taken
  std::atomic<std::uint32_t> done_ = 0;  // number of finished parts
  std::atomic<Call> call_ = nullptr;
  std::atomic<const void*> act_ = nullptr;
  std::mutex failing_;
  std::exception_ptr error_;
  int failed_ = 0;  // the part that has thrown error_
  std::vector<std::thread> threads_;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/executor/team.ipp"
#endif
