// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/transport/threads.hpp"

namespace terse {

TERSE_CORE ThreadGroup::ThreadGroup(int ranks, Deadline deadline)
    : ranks_(ranks), deadline_(detail::positive(deadline)) {
  if (ranks < 1) throw usage_error("a group needs at least one rank, not " + std::to_string(ranks));
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
