// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "terse/transport/thread_rank.hpp"

namespace terse {

/// A group of ranks that are threads of one process.
///
///     terse::ThreadGroup group(4);
///     group.run([](terse::Threads& transport) { ... });
///
/// A rank that throws poisons the group: the waits of the other ranks end with a peer_error that names it. They may go on without
/// it, see Threads::regroup, and other threads may join them, see add_rank.
class ThreadGroup {
 public:
  /// Throws usage_error unless ranks >= 1 and deadline > 0. No wait lasts longer than `deadline`.
  explicit ThreadGroup(int ranks, Deadline deadline = std::chrono::seconds(60));

  int size() const { return ranks_; }

  /// Runs program(transport) once for each rank, each in its own thread, and returns when all have returned. Throws the
  /// culprit's exception, otherwise the first peer_error. For a value that is not finite, throws the exception of the
  /// rank that has the value. Throws error, at once, if a thread can't be started. Exceptions of ranks without which the others have
  /// gone on are dropped: the others have seen their text in a peer_error.
  template <class Program>
  void run(Program program) {
    run_ranks([](void* ours, Threads& transport) { (*static_cast<Program*>(ours))(transport); }, &program);
  }

  /// Runs program(transport) in this thread, as a further rank of the group that `run` runs in another thread. Waits until its ranks call
  /// Threads::admit. Throws what the program throws, after the others were told; peer_error if the group ends before that, or if no rank has
  /// called admit within `patience`.
  template <class Program>
  void add_rank(Program program, Deadline patience = std::chrono::seconds(60)) {
    run_further([](void* ours, Threads& transport) { (*static_cast<Program*>(ours))(transport); }, &program,
                patience);
  }

 private:
  using Call = void (*)(void* program, Threads& transport);
  void run_ranks(Call call, void* program);
  void run_further(Call call, void* program, Deadline patience);
  /// Runs the program of a rank. Tells the others of its end, and throws its exception.
  static void run_rank(Call call, void* program, const std::shared_ptr<detail::ThreadShared>& shared,
                       const std::shared_ptr<detail::ThreadShared::Channel>& channel, int rank);
  /// Returns the culprit of a non_finite_error; -1 for any other exception.
  static int whose_value(const std::exception_ptr& failure);
  /// Marks the end of a rank's program in its group, and in those in which it has gone on.
  static void leave(detail::ThreadShared* shared, int rank, const std::optional<std::string>& failure);

  int ranks_;
  std::chrono::milliseconds deadline_;
  std::shared_ptr<detail::ThreadShared::Door> door_ = std::make_shared<detail::ThreadShared::Door>();
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/threads.ipp"
#endif
