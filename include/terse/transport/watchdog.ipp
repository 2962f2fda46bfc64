// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>

#include "terse/core/separate.hpp"
#include "terse/transport/watchdog.hpp"

namespace terse {

TERSE_CORE Watchdog::Watchdog(const char* call, Deadline deadline, int rank)
    : thread_(
          start(call, rank, [this, call, patience = std::max(detail::positive(deadline, rank), least), rank] {
            std::unique_lock lock(mutex_);
            if (returned_.wait_until(lock, detail::time_after(patience), [this] { return over_; })) return;
            const error late("waited " + std::to_string(patience.count()) + " ms in " + call +
                                 " for one or more ranks that have not come or have stopped there",
                             rank);
            std::fprintf(stderr, "%s\n", late.what());
            std::fflush(stderr);
            std::_Exit(EXIT_FAILURE);
          })) {}

TERSE_CORE Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  returned_.notify_one();
  thread_.join();
}

}  // namespace terse
