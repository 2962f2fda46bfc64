// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "terse/core/separate.hpp"
#include "terse/transport/threads.hpp"

namespace terse {

TERSE_CORE ThreadGroup::ThreadGroup(int ranks, Deadline deadline)
    : ranks_(ranks), deadline_(detail::positive(deadline)) {
  if (ranks < 1) throw usage_error("a group needs at least one rank, not " + std::to_string(ranks));
}

TERSE_CORE void ThreadGroup::run_ranks(Call call, void* program) {
  const auto shared = std::make_shared<detail::ThreadShared>(ranks_, deadline_);
  std::vector<int> members;
  for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
  const auto channel = std::make_shared<detail::ThreadShared::Channel>(0, std::move(members));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks_));
  const auto be_rank = [&](int rank) {
    try {
      Threads transport(shared, channel, rank);
      call(program, transport);
      leave(*shared, rank, {});
    } catch (const std::exception& failure) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      leave(*shared, rank, " threw: " + std::string(failure.what()));
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      leave(*shared, rank, " threw: unknown exception");
    }
  };
  // libc++ 14 has no std::jthread.
  std::vector<std::thread> threads;
  try {
    while (static_cast<int>(threads.size()) < ranks_)
      threads.emplace_back(be_rank, static_cast<int>(threads.size()));
  } catch (const std::exception& refusal) {
    // The running ranks are told at once; the remaining ones could not start either.
    const std::size_t rank = threads.size();
    const std::string why = "'s thread could not be started: " + std::string(refusal.what()) + "; " +
                            std::to_string(ranks_) + " ranks require " + std::to_string(ranks_) + " threads";
    failures[rank] = std::make_exception_ptr(error("rank " + std::to_string(rank) + why));
    leave(*shared, static_cast<int>(rank), why);
  }
  for (std::thread& one : threads) one.join();
  const int culprit = shared->culprit;
  if (culprit >= 0 && failures[static_cast<std::size_t>(culprit)]) {
    // For a value that is not finite, the rank that has it has the most precise error.
    if (whose_value(failures[static_cast<std::size_t>(culprit)]) >= 0)
      for (int rank = 0; rank < ranks_; ++rank)
        if (whose_value(failures[static_cast<std::size_t>(rank)]) == rank)
          std::rethrow_exception(failures[static_cast<std::size_t>(rank)]);
    std::rethrow_exception(failures[static_cast<std::size_t>(culprit)]);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

TERSE_CORE int ThreadGroup::whose_value(const std::exception_ptr& failure) {
  if (!failure) return -1;
  try {
    std::rethrow_exception(failure);
  } catch (const non_finite_error& found) {
    return found.culprit();
  } catch (...) {
    return -1;
  }
}

TERSE_CORE void ThreadGroup::leave(detail::ThreadShared& shared, int rank,
                                   const std::optional<std::string>& failure) {
  const std::lock_guard lock(shared.mutex);
  shared.left[static_cast<std::size_t>(rank)] = 1;
  if (failure) shared.poison(rank, "rank " + std::to_string(rank) + *failure);
  for (std::condition_variable& one : shared.wake) one.notify_all();
}

}  // namespace terse
