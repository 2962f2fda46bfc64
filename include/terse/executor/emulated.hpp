// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "terse/executor/grid_pack.hpp"
#include "terse/executor/grid_reduce.hpp"
#include "terse/executor/grid_select.hpp"
#include "terse/executor/grid_sparse.hpp"

namespace terse {

namespace memory {

/// Stands for a device's memory on the host: readable and writable while a kernel runs or a copy is made, and by
/// nobody in between, so that host code that reaches for it ends with a fault, as it would on a device. What nobody has written is
/// full of ones: NaN, and positions and lengths beyond all.
struct emulated {
  static void* allocate(std::size_t bytes) { return arena().allocate(bytes); }
  static void* allocate_unwritten(std::size_t bytes) {
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

  /// While one lives, the memory is open.
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
    /// Gives the pages back; the addresses aren't used again.
    void release(void* place) noexcept {
      if (place == nullptr) return;
      const std::lock_guard lock(mutex_);
      madvise(place, taken_[place], MADV_DONTNEED);
      taken_.erase(place);
    }
    void open(int more) {
      const std::lock_guard lock(mutex_);
      const bool was_open = users_ > 0;
      users_ += more;
      if (was_open != (users_ > 0)) protect();
    }

   private:
    void protect() {
      if (used_ > 0 && mprotect(base_, used_, users_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        std::abort();
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

namespace detail {

/// A block's threads, one after the other, each until it waits.
class EmulatedThreads {
  static constexpr std::size_t stack_bytes = std::size_t{64} << 10;
  enum class Waits { nobody, warp, block, done };

 public:
  /// What a kernel sees of its block.
  class Block {
   public:
    index_t index() const { return threads_->index_; }
    int thread() const { return thread_; }
    void sync() { threads_->wait(thread_, Waits::block); }
    std::uint32_t ballot(bool bit) {
      const std::uint32_t* const all = show(bit ? 1 : 0);
      std::uint32_t word = 0;
      for (int k = 0; k < 32; ++k) word |= all[k] << k;
      return word;
    }
    std::uint32_t shuffle(std::uint32_t word, int from) { return show(word)[from]; }
    template <std::unsigned_integral T>
    T exclusive_sum(T own, T& total) {
      std::uint64_t* const place = threads_->number_[block_turn_];
      block_turn_ = 1 - block_turn_;
      place[thread_] = own;
      sync();
      std::uint64_t before = 0, all = 0;
      for (int thread = 0; thread < threads_->threads_; ++thread) {
        if (thread == thread_) before = all;
        all += place[thread];
      }
      total = static_cast<T>(all);
      return static_cast<T>(before);
    }
    template <std::unsigned_integral T>
    T sum(T own) {
      T total = 0;
      exclusive_sum(own, total);
      return total;
    }

   private:
    friend class EmulatedThreads;
    Block(EmulatedThreads* threads, int thread) : threads_(threads), thread_(thread) {}

    /// The words of all threads of the warp. They take turns between two places: nobody writes where others may still
    /// read.
    const std::uint32_t* show(std::uint32_t word) {
      std::uint32_t* const place = threads_->word_[turn_];
      turn_ = 1 - turn_;
      place[thread_] = word;
      threads_->wait(thread_, Waits::warp);
      return place + thread_ / 32 * 32;
    }

    EmulatedThreads* threads_;
    int thread_;
    int turn_ = 0, block_turn_ = 0;
  };

  /// Odd blocks run their threads from the last to the first, so that what should be a wait and isn't shows.
  template <class Kernel>
  void run(const Kernel& kernel, index_t index) {
    index_ = index;
    threads_ = tuning_of_kernel<Kernel>().threads;
    const auto shared = std::make_unique<typename Kernel::Shared>();
    if constexpr (!Kernel::cooperative) {
      for (int k = 0; k < threads_; ++k) {
        Block block(this, in_turn(k));
        kernel(block, *shared);
      }
    } else {
      Call<Kernel> call{this, &kernel, shared.get()};
      if (stacks_ == nullptr) stacks_.reset(new char[block_threads * stack_bytes]);
      for (int thread = 0; thread < threads_; ++thread) {
        ucontext_t& context = context_[thread];
        getcontext(&context);
        context.uc_stack.ss_sp = stacks_.get() + static_cast<std::size_t>(thread) * stack_bytes;
        context.uc_stack.ss_size = stack_bytes;
        context.uc_link = &home_;
        const auto address = reinterpret_cast<std::uintptr_t>(&call);
        makecontext(&context, reinterpret_cast<void (*)()>(&Call<Kernel>::enter), 3, thread,
                    static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
        waits_[thread] = Waits::nobody;
      }
      schedule();
    }
  }

 private:
  template <class Kernel>
  struct Call {
    EmulatedThreads* threads;
    const Kernel* kernel;
    typename Kernel::Shared* shared;

    static void enter(int thread, unsigned low, unsigned high) {
      const Call& call = *reinterpret_cast<Call*>(std::uintptr_t{low} | std::uintptr_t{high} << 32);
      Block block(call.threads, thread);
      (*call.kernel)(block, *call.shared);
      call.threads->waits_[thread] = Waits::done;
    }
  };

  int in_turn(int k) const { return index_ % 2 == 0 ? k : threads_ - 1 - k; }

  void wait(int thread, Waits what) {
    if (context_[thread].uc_stack.ss_sp == nullptr) refuse("a kernel that is not cooperative waits");
    waits_[thread] = what;
    swapcontext(&context_[thread], &home_);
  }

  bool all(int begin, int count, Waits what) const {
    for (int thread = begin; thread < begin + count; ++thread)
      if (waits_[thread] != what) return false;
    return true;
  }
  void release(int begin, int count) {
    for (int thread = begin; thread < begin + count; ++thread) waits_[thread] = Waits::nobody;
  }

  void schedule() {
    for (;;) {
      bool moved = false;
      for (int k = 0; k < threads_; ++k) {
        const int thread = in_turn(k);
        if (waits_[thread] != Waits::nobody) continue;
        moved = true;
        swapcontext(&home_, &context_[thread]);
      }
      for (int warp = 0; warp < threads_; warp += 32)
        if (all(warp, 32, Waits::warp)) release(warp, 32), moved = true;
      if (all(0, threads_, Waits::block)) release(0, threads_), moved = true;
      if (all(0, threads_, Waits::done)) break;
      if (!moved) refuse("threads of a block wait for others that don't come");
    }
    for (ucontext_t& context : context_) context.uc_stack.ss_sp = nullptr;
  }
  [[noreturn]] static void refuse(const char* what) {
    std::fprintf(stderr, "terse: emulated device: %s\n", what);
    std::abort();
  }

  index_t index_ = 0;
  int threads_ = block_threads;  // of the block that runs
  ucontext_t home_{};
  ucontext_t context_[block_threads]{};
  Waits waits_[block_threads]{};
  std::uint32_t word_[2][block_threads]{};
  std::uint64_t number_[2][block_threads]{};
  std::unique_ptr<char[]> stacks_;
};

/// By one thread.
struct ExclusiveSumKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  std::uint64_t* data;
  index_t count;

  template <class Block>
  void operator()(Block& block, Shared&) const {
    if (block.thread() != 0) return;
    std::uint64_t sum = 0;
    for (index_t k = 0; k < count; ++k) sum += std::exchange(data[k], sum);
  }
};

}  // namespace detail

namespace executor {

/// Runs the device's kernels on the host, thread by thread, in memory that host code can't reach: what works here
/// fails on a device for reasons of the device alone. For tests and debuggers; slow.
struct emulated {
  using memory = terse::memory::emulated;
  using staging = terse::memory::host;
  static constexpr bool grid = true;
  /// So that tests with few elements come to the kernels for many tiles, too.
  static constexpr Tuning tuning{.few_tiles = 6};

  /// What was launched between `begin` and `end` on this thread, to be run again: a CUDA graph's twin.
  class Recording {
   public:
    static void begin() { under_way().emplace(); }
    static Recording end() { return std::move(*std::exchange(under_way(), std::nullopt)); }
    void replay() const {
      for (const std::function<void()>& launch : launches_) launch();
    }

   private:
    friend struct emulated;
    static std::optional<Recording>& under_way() {
      thread_local std::optional<Recording> recording;
      return recording;
    }
    std::vector<std::function<void()>> launches_;
  };

  /// Kernels and copies that this thread has launched so far.
  static index_t& launches() {
    thread_local index_t count = 0;
    return count;
  }

  template <class Kernel>
  void launch(const Kernel& kernel, index_t blocks) const {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    ++launches();
    if (auto& recording = Recording::under_way(); recording) {
      recording->launches_.push_back([=] { emulated{}.launch(kernel, blocks); });
      return;
    }
    thread_local const auto threads = std::make_unique<detail::EmulatedThreads>();
    const memory::Open open;
    for (index_t index = 0; index < blocks; ++index) threads->run(kernel, index);
  }
  void move(void* to, const void* from, std::size_t bytes) const {
    ++launches();
    if (auto& recording = Recording::under_way(); recording) {
      recording->launches_.push_back([=] { emulated{}.move(to, from, bytes); });
      return;
    }
    const memory::Open open;
    std::memcpy(to, from, bytes);
  }
  void bring(void* to, const void* from, std::size_t bytes) const { move(to, from, bytes); }
  void send(void* to, const void* from, std::size_t bytes) const { move(to, from, bytes); }
  static index_t exclusive_sum_bytes(index_t) { return 0; }
  void exclusive_sum(std::uint64_t* data, index_t count, void*) const {
    launch(detail::ExclusiveSumKernel{data, count}, 1);
  }
  /// Throws terse::error while recording, as CUDA does.
  void synchronize() const {
    if (Recording::under_way()) throw error("a wait for the device can't be recorded");
  }
};

}  // namespace executor
}  // namespace terse
