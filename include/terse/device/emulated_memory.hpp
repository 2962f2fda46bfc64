// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace terse {

namespace memory {

/// Stand-in for a device's memory on the host, accessible only while a kernel runs or a copy is made. Host code that
/// accesses it in between faults, as it would on a device. Unwritten memory is filled with ones, which are NaN, and
/// positions and lengths beyond all valid ones.
struct emulated {
  static void* allocate(std::size_t bytes) { return arena().allocate(bytes); }
  static void* allocate_uninitialized(std::size_t bytes) {
    void* const place = allocate(bytes);
    const Open open;
    return std::memset(place, 0xFF, bytes);
  }
  static void release(void* place) noexcept { arena().release(place); }
  static void download(void* to, const void* from, std::size_t bytes) {
    const Open open;
    std::memcpy(to, from, bytes);
  }
  static void upload(void* to, const void* from, std::size_t bytes) {
    const Open open;
    std::memcpy(to, from, bytes);
  }

  /// A guard that keeps the memory open while it lives.
  class Open {
   public:
    Open() { arena().open(+1); }
    ~Open() { arena().open(-1); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
  };

 private:
  class Arena {
    static constexpr std::size_t room = std::size_t{1} << 36, page = 4096;

   public:
    Arena()
        : base_(static_cast<char*>(
              mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
      if (base_ == MAP_FAILED) throw std::bad_alloc();
    }
    void* allocate(std::size_t bytes) {
      const std::lock_guard lock(mutex_);
      if (bytes > room - used_) throw std::bad_alloc();
      char* const place = base_ + used_;
      const std::size_t taken = (bytes + page - 1) / page * page;
      used_ += taken;
      taken_[place] = taken;
      protect();
      return place;
    }
    /// Returns the pages to the system; the addresses aren't reused.
    void release(void* place) noexcept {
      if (place == nullptr) return;
      const std::lock_guard lock(mutex_);
      const std::size_t taken = taken_[place];
      madvise(place, taken, MADV_DONTNEED);
      if (mprotect(place, taken, PROT_NONE) != 0) std::abort();
      taken_.erase(place);
    }
    void open(int more) {
      const std::lock_guard lock(mutex_);
      const bool was_open = users_ > 0;
      users_ += more;
      if (was_open != (users_ > 0)) protect();
    }

   private:
    /// Opens or closes the memory from the first allocation on; released memory before that stays closed.
    void protect() {
      if (taken_.empty()) return;
      char* const first = static_cast<char*>(taken_.begin()->first);
      const auto bytes = static_cast<std::size_t>(base_ + used_ - first);
      if (mprotect(first, bytes, users_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) std::abort();
    }
    std::mutex mutex_;
    char* base_;
    std::size_t used_ = 0;
    std::map<void*, std::size_t> taken_;
    int users_ = 0;
  };
  static Arena& arena() {
    static Arena arena;
    return arena;
  }
};

}  // namespace memory

}  // namespace terse
