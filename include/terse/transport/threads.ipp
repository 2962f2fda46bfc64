// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
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
  const auto shared = std::make_shared<detail::ThreadShared>(ranks_, deadline_, door_);
  std::vector<int> members;
  for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
  const auto channel = std::make_shared<detail::ThreadShared::Channel>(0, std::move(members));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks_));
  door_->open();
  const auto be_rank = [&](int rank) {
    try {
      run_rank(call, program, shared, channel, rank);
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
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
    leave(shared.get(), static_cast<int>(rank), why);
  }
  for (std::thread& one : threads) one.join();
  door_->close();
  // Only the ranks of the last group count, by their numbers in the first one; -1 for those that have joined.
  detail::ThreadShared* last = shared.get();
  std::unique_lock lock(last->mutex);  // ranks that have joined may still run
  std::vector<int> ranks = channel->members;
  while (last->next) {
    std::vector<int> left;
    for (const int rank : last->before) left.push_back(rank < 0 ? -1 : ranks[static_cast<std::size_t>(rank)]);
    ranks = std::move(left);
    last = last->next.get();
    lock = std::unique_lock(last->mutex);
  }
  const auto failure_of = [&](int rank) {
    const int first = ranks[static_cast<std::size_t>(rank)];
    return first < 0 ? std::exception_ptr{} : failures[static_cast<std::size_t>(first)];
  };
  const int culprit = last->culprit, size = static_cast<int>(ranks.size());
  if (culprit >= 0 && failure_of(culprit)) {
    // For a value that is not finite, the rank that has it has the most precise error.
    if (whose_value(failure_of(culprit)) >= 0)
      for (int rank = 0; rank < size; ++rank)
        if (whose_value(failure_of(rank)) == rank) std::rethrow_exception(failure_of(rank));
    std::rethrow_exception(failure_of(culprit));
  }
  for (int rank = 0; rank < size; ++rank)
    if (failure_of(rank)) std::rethrow_exception(failure_of(rank));
}

TERSE_CORE void ThreadGroup::run_rank(Call call, void* program,
                                      const std::shared_ptr<detail::ThreadShared>& shared,
                                      const std::shared_ptr<detail::ThreadShared::Channel>& channel,
                                      int rank) {
  try {
    Threads transport(shared, channel, rank);
    call(program, transport);
    leave(shared.get(), rank, {});
  } catch (const std::exception& failure) {
    leave(shared.get(), rank, " threw: " + std::string(failure.what()));
    throw;
  } catch (...) {
    leave(shared.get(), rank, " threw: unknown exception");
    throw;
  }
}

TERSE_CORE void ThreadGroup::run_further(Call call, void* program, Deadline patience) {
  const auto until = detail::time_after(detail::positive(patience));
  detail::ThreadShared::Door::Guest guest;
  {
    std::unique_lock lock(door_->mutex);
    guest.refused = door_->closed;
    if (!guest.refused) door_->waiting.push_back(&guest);
    door_->changed.wait_until(lock, until, [&] { return guest.refused || guest.rank >= 0; });
    if (guest.refused) throw peer_error("the group has ended before it has admitted this rank", -1, -1);
    if (guest.rank < 0) {
      std::erase(door_->waiting, &guest);
      throw peer_error(
          "no rank of the group has called admit within " + std::to_string(patience.count()) + " ms", -1, -1);
    }
  }
  run_rank(call, program, guest.shared, guest.channel, guest.rank);
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

TERSE_CORE void ThreadGroup::leave(detail::ThreadShared* shared, int rank,
                                   const std::optional<std::string>& failure) {
  while (shared != nullptr && rank >= 0) {
    const std::lock_guard lock(shared->mutex);
    shared->left[static_cast<std::size_t>(rank)] = 1;
    if (failure) shared->poison(rank, "rank " + std::to_string(rank) + *failure);
    for (std::condition_variable& one : shared->wake) one.notify_all();
    const auto place = std::find(shared->before.begin(), shared->before.end(), rank);
    rank = place == shared->before.end() ? -1 : static_cast<int>(place - shared->before.begin());
    shared = shared->next.get();
  }
}

}  // namespace terse
