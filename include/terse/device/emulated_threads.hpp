// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "terse/core/layout.hpp"
#include "terse/device/emulated_stack.hpp"
#include "terse/executor/tuning.hpp"

namespace terse::detail {

struct AnyKernel;

/// The threads of a block, run one after the other; each runs until it waits.
class EmulatedThreads {
  static constexpr std::size_t stack_bytes = std::size_t{64} << 10;
  enum class Waits { nobody, warp, block, done };
  /// A number per thread. The first thread that resumes after the wait replaces them by the sums of the previous
  /// ones.
  struct Numbers {
    std::uint64_t of[block_threads]{}, total = 0;
    bool summed = false;

    void sum(int threads) {
      if (std::exchange(summed, true)) return;
      total = 0;
      for (int thread = 0; thread < threads; ++thread) {
        const std::uint64_t before = total;
        total += std::exchange(of[thread], before);
      }
    }
  };

 public:
  /// A kernel's view of its block.
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
      Numbers& numbers = threads_->numbers_[block_turn_];
      block_turn_ = 1 - block_turn_;
      numbers.of[thread_] = own;
      numbers.summed = false;
      sync();
      numbers.sum(threads_->threads_);
      total = static_cast<T>(numbers.total);
      return static_cast<T>(numbers.of[thread_]);
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

    /// Returns the words of all threads of the warp. Calls alternate between two buffers, so that no thread overwrites
    /// a word that others may still read.
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

  /// Aborts the program if a device would refuse the launch.
  static void check_blocks(index_t blocks) {
    if (blocks < 1 || blocks > 0x7FFFFFFF) refuse("a launch has no blocks, or too many");
  }
  /// Runs a block. Odd blocks run their threads from the last to the first, to reveal missing waits.
  inline void run(const AnyKernel& kernel, index_t index);

 private:
  struct Call;

  int in_turn(int k) const { return index_ % 2 == 0 ? k : threads_ - 1 - k; }

  void wait(int thread, Waits what) {
    if (!may_wait_) refuse("a kernel that is not cooperative waits");
    waits_[thread] = what;
    EmulatedStack::change(stack_[thread], next(thread));
  }
  /// Returns the stack to run after `thread`: that of the next thread in turn that doesn't wait, or the scheduler's
  /// after the last one.
  EmulatedStack& next(int thread) {
    for (int k = in_turn(thread) + 1; k < threads_; ++k)
      if (waits_[in_turn(k)] == Waits::nobody) return stack_[in_turn(k)];
    return home_;
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
    may_wait_ = true;
    EmulatedStack::change(home_, next(in_turn(-1)));
    while (!all(0, threads_, Waits::done)) {
      bool moved = false;
      for (int warp = 0; warp < threads_; warp += 32)
        if (all(warp, 32, Waits::warp)) release(warp, 32), moved = true;
      if (all(0, threads_, Waits::block)) release(0, threads_), moved = true;
      if (!moved) refuse("threads of a block wait for others that don't come");
      EmulatedStack::change(home_, next(in_turn(-1)));
    }
    may_wait_ = false;
  }
  [[noreturn]] static void refuse(const char* what) {
    std::fprintf(stderr, "terse: emulated device: %s\n", what);
    std::abort();
  }

  index_t index_ = 0;
  int threads_ = block_threads;  // of the current block
  bool may_wait_ = false;
  EmulatedStack home_, stack_[block_threads];
  Waits waits_[block_threads]{};
  std::uint32_t word_[2][block_threads]{};
  Numbers numbers_[2];
  std::unique_ptr<char[]> stacks_;
};

/// A type-erased kernel: its bytes, and a function that runs it.
struct AnyKernel {
  const void* kernel;
  std::size_t bytes, shared_bytes;
  int threads;
  bool cooperative;
  void (*run)(const void* kernel, EmulatedThreads::Block& block, void* shared);

  template <class Kernel>
  TERSE_INLINE static AnyKernel of(const Kernel& kernel) {
    using Shared = typename Kernel::Shared;
    static_assert(std::is_trivially_copyable_v<Kernel> && std::is_trivially_copyable_v<Shared> &&
                  alignof(Shared) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    static_assert(sizeof(Kernel) <= 32764 && sizeof(Shared) <= std::size_t{48} << 10,
                  "more arguments or shared memory than a device has");
    return {&kernel,
            sizeof(Kernel),
            sizeof(Shared),
            tuning_of_kernel<Kernel>().threads,
            Kernel::cooperative,
            &run_of<Kernel>};
  }

 private:
  template <class Kernel>
  static void run_of(const void* kernel, EmulatedThreads::Block& block, void* shared) {
    (*static_cast<const Kernel*>(kernel))(block, *static_cast<typename Kernel::Shared*>(shared));
  }
};

struct EmulatedThreads::Call {
  EmulatedThreads* threads;
  const AnyKernel* kernel;
  void* shared;
  int thread;

  static void enter(void* given) {
    const Call& call = *static_cast<Call*>(given);
    Block block(call.threads, call.thread);
    call.kernel->run(call.kernel->kernel, block, call.shared);
    call.threads->wait(call.thread, Waits::done);
  }
};

inline void EmulatedThreads::run(const AnyKernel& kernel, index_t index) {
  index_ = index;
  threads_ = kernel.threads;
  // Exactly the required size, so that sanitizers detect writes beyond it.
  const std::unique_ptr<std::byte[]> shared(new std::byte[kernel.shared_bytes]);
  std::memset(shared.get(), 0xFF,
              kernel.shared_bytes);  // nvcc silently drops initializers
  if (!kernel.cooperative) {
    for (int k = 0; k < threads_; ++k) {
      Block block(this, in_turn(k));
      kernel.run(kernel.kernel, block, shared.get());
    }
    return;
  }
  if (stacks_ == nullptr) stacks_.reset(new char[block_threads * stack_bytes]);
  Call calls[block_threads];
  for (int thread = 0; thread < threads_; ++thread) {
    calls[thread] = {this, &kernel, shared.get(), thread};
    stack_[thread].begin(stacks_.get() + static_cast<std::size_t>(thread) * stack_bytes, stack_bytes,
                         &Call::enter, &calls[thread]);
    waits_[thread] = Waits::nobody;
  }
  schedule();
}

}  // namespace terse::detail
