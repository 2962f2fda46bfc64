// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cfenv>
#include <string>
#include <system_error>
#include <utility>

#include "terse/core/error.hpp"
#include "terse/core/separate.hpp"
#include "terse/executor/team.hpp"

namespace terse {

namespace detail {

/// Waits until `value` isn't `old`. It spins at first, since most waits end within microseconds.
inline void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int look = 0; look < 400; ++look) {
    if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace detail

TERSE_CORE Team::Team(int threads) : size_(threads) {
  if (threads < 1)
    throw usage_error("a team has at least 1 thread, not " + std::to_string(threads) +
                      ": give another number, or none for a thread for each processor");
  threads_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) threads_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& refusal) {
    end();
    throw error("thread " + std::to_string(threads_.size() + 2) + " of a team of " + std::to_string(threads) +
                " could not be started: " + refusal.what());
  }
}

TERSE_CORE Team::~Team() { end(); }

TERSE_CORE void Team::end() {
  turn_.fetch_or(1, std::memory_order_release);
  turn_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

TERSE_CORE void Team::run(Call call, const void* act, int parts) {
  if (size_ == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int part = 0; part < parts; ++part) call(act, part, 0);
    return;
  }
  call_.store(call, std::memory_order_relaxed);
  act_.store(act, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t turn = turn_.load(std::memory_order_relaxed) + 2;
  next_.store(std::uint64_t{turn} << 32 | static_cast<std::uint64_t>(parts) << 16, std::memory_order_release);
  turn_.store(turn, std::memory_order_release);
  turn_.notify_all();
  take_parts(0);
  const auto all = static_cast<std::uint32_t>(parts);
  for (std::uint32_t done; (done = done_.load(std::memory_order_acquire)) != all;)
    detail::wait_while(done_, done);
  const std::exception_ptr error = std::exchange(error_, nullptr);
  busy_.store(false, std::memory_order_release);
  if (error != nullptr) std::rethrow_exception(error);
}

TERSE_CORE void Team::work(int thread) {
  std::fesetenv(FE_DFL_ENV);
  for (std::uint32_t seen = 0;;) {
    detail::wait_while(turn_, seen);
    seen = turn_.load(std::memory_order_acquire);
    if (seen % 2 != 0) return;
    take_parts(thread);
  }
}

TERSE_CORE void Team::take_parts(int thread) {
  for (std::uint64_t next = next_.load(std::memory_order_acquire);
       (next & most_parts) != (next >> 16 & most_parts);) {
    // These belong to the turn in `next`: if the turn is unchanged when the part is taken, it was so when these were
    // read.
    const Call call = call_.load(std::memory_order_relaxed);
    const void* const act = act_.load(std::memory_order_relaxed);
    if (!next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    const int part = static_cast<int>(next & most_parts);
    try {
      call(act, part, thread);
    } catch (...) {
      note_error(part);
    }
    const std::uint64_t parts = next >> 16 & most_parts;
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) done_.notify_one();
    next = next_.load(std::memory_order_acquire);
  }
}

TERSE_CORE void Team::note_error(int part) {
  const std::lock_guard lock(failing_);
  if (error_ != nullptr && failed_ < part) return;
  error_ = std::current_exception();
  failed_ = part;
}

TERSE_CORE int Team::available() {
#ifdef __linux__
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof processors, &processors) == 0) return CPU_COUNT(&processors);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace terse
