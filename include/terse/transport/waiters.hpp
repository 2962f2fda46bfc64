// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace terse {

namespace detail {

/// Threads for blocking jobs: one for each job in flight, kept for later jobs.
class Waiters {
 public:
  Waiters() = default;
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;
  ~Waiters() {
    {
      const std::lock_guard lock(mutex_);
      end_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(void (*job)(void*), void* what) {
    const std::lock_guard lock(mutex_);
    if (idle_ < jobs_.size() + 1) {
      threads_.emplace_back([this] { work(); });
      ++idle_;  // the new thread, so that the next call counts it
    }
    jobs_.emplace_back(job, what);
    wake_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return end_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const auto [job, what] = jobs_.front();
      jobs_.pop_front();
      --idle_;
      lock.unlock();
      job(what);
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<void (*)(void*), void*>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool end_ = false;
};

}  // namespace detail

}  // namespace terse
