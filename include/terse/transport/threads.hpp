// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terse/transport/thread_rank.hpp"

namespace terse {

/// Ranks as threads of one process.
///
///     terse::ThreadGroup group(4);
///     group.run([](terse::Threads& transport) { ... });
///
/// A rank that throws poisons the group: the others leave their waits with peer_error that names it.
class ThreadGroup {
 public:
  /// Throws usage_error unless ranks >= 1 and deadline > 0. No wait lasts longer than `deadline`.
  explicit ThreadGroup(int ranks, Deadline deadline = std::chrono::seconds(60));

  int size() const { return ranks_; }

  /// Runs program(transport) once for each rank, each in a thread of its own, and returns when all have
  /// returned. Throws what the culprit threw, or else the first peer_error; of a value that is not finite what the rank that has it
  /// threw; error, at once, where a thread can't be started.
  template <class Program>
  void run(Program program) {
    auto shared = std::make_shared<detail::ThreadShared>(ranks_, deadline_);
    std::vector<int> members;
    for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
    const auto channel = std::make_shared<detail::ThreadShared::Channel>(0, std::move(members));
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks_));
    {
      const auto be_rank = [&](int rank) {
        try {
          Threads transport(shared, channel, rank);
          program(transport);
          leave(*shared, rank, {});
        } catch (const std::exception& failure) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
          leave(*shared, rank, " threw: " + std::string(failure.what()));
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
          leave(*shared, rank, " threw: unknown exception");
        }
      };
      // std::jthread is no part of libc++ 14.
      std::vector<std::thread> threads;
      try {
        while (static_cast<int>(threads.size()) < ranks_)
          threads.emplace_back(be_rank, static_cast<int>(threads.size()));
      } catch (const std::exception& refusal) {
        // The ranks that run are told at once; those that remain have no thread either.
        const std::size_t rank = threads.size();
        const std::string why = "'s thread could not be started: " + std::string(refusal.what()) + "; " +
                                std::to_string(ranks_) + " ranks want " + std::to_string(ranks_) + " threads";
        failures[rank] = std::make_exception_ptr(error("rank " + std::to_string(rank) + why));
        leave(*shared, static_cast<int>(rank), why);
      }
      for (std::thread& one : threads) one.join();
    }
    const int culprit = shared->culprit;
    if (culprit >= 0 && failures[static_cast<std::size_t>(culprit)]) {
      // Of a value that is not finite the rank that has it knows most.
      if (whose_value(failures[static_cast<std::size_t>(culprit)]) >= 0)
        for (int rank = 0; rank < ranks_; ++rank)
          if (whose_value(failures[static_cast<std::size_t>(rank)]) == rank)
            std::rethrow_exception(failures[static_cast<std::size_t>(rank)]);
      std::rethrow_exception(failures[static_cast<std::size_t>(culprit)]);
    }
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

 private:
  /// The culprit of a non_finite_error; -1 of anything else.
  static int whose_value(const std::exception_ptr& failure);
  static void leave(detail::ThreadShared& shared, int rank, const std::optional<std::string>& failure);

  int ranks_;
  std::chrono::milliseconds deadline_;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/threads.ipp"
#endif
