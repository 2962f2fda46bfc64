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

/// A team of threads that run the parts of one loop at a time and sleep in between. The caller's thread is one of them, and goes on
/// alone while the others wake up.
class Team {
 public:
  /// Parts of a loop.
  static constexpr int most_parts = 0xFFFF;

  /// Starts threads - 1 threads, which round to nearest and keep subnormal numbers, whatever the calling thread does. Throws
  /// usage_error below 1, error where the system refuses a thread.
  TERSE_COLD explicit Team(int threads);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  TERSE_COLD ~Team();

  int size() const { return size_; }

  /// act(part, thread) once for each part in [0, parts), on whichever thread in [0, size()), the caller being 0, and returns when all
  /// have ended; parts are begun in their order. Then rethrows the error of the lowest part. While the team is busy, for
  /// another thread or for a part that calls this, the caller runs all parts, as thread 0. Allocates nothing.
  template <class Act>
  void run(int parts, const Act& act) {
    run([](const void* given, int part, int thread) { (*static_cast<const Act*>(given))(part, thread); },
        &act, parts);
  }

  /// Processors that the calling thread may run on, at least 1.
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
  std::atomic<std::uint32_t> turn_ = 0;  // twice the loops that have begun; odd once the team ends
  std::atomic<std::uint64_t> next_ =
      0;  // the turn, the number of parts, and the next one that nobody has taken
  std::atomic<std::uint32_t> done_ = 0;  // parts
  std::atomic<Call> call_ = nullptr;
  std::atomic<const void*> act_ = nullptr;
  std::mutex failing_;
  std::exception_ptr error_;
  int failed_ = 0;  // the part that error_ is of
  std::vector<std::thread> threads_;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/executor/team.ipp"
#endif
