// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace terse::detail {

/// A stack that is left in the midst of a function and entered there again.
class EmulatedStack {
 public:
  /// A stack on which `entry(argument)` begins when it is entered first. `entry` leaves it at its end, for good.
  void begin(char* memory, std::size_t bytes, void (*entry)(void*), void* argument);

  /// Leaves `from`, on which the caller runs, for `to`.
  static void change(EmulatedStack& from, EmulatedStack& to);

 private:
#ifdef __x86_64__
  void* top_ = nullptr;
#else
  static void enter(unsigned low, unsigned high) {
    const auto& own = *reinterpret_cast<EmulatedStack*>(std::uintptr_t{low} | std::uintptr_t{high} << 32);
    own.entry_(own.argument_);
  }
  ucontext_t context_{};
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#endif
};

#ifdef __x86_64__

// By hand: swapcontext asks the system for the signal mask each time, which would be half of a cooperative kernel's time.

inline void EmulatedStack::begin(char* memory, std::size_t bytes, void (*entry)(void*), void* argument) {
  // Aligned as after a call, whose return address is missing.
  auto** const end = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(memory) + bytes) / 16 * 16);
  end[-1] = nullptr;
  end[-2] = reinterpret_cast<void*>(entry);
  end[-3] = argument;
  top_ = end - 3;
}

#if __has_attribute(noipa)
[[gnu::noipa]]
#endif
[[gnu::noinline]] inline void
EmulatedStack::change(EmulatedStack& from, EmulatedStack& to) {
  // The compiler saves what is named below, which is what a function may not change but for the frame pointer; vectors
  // are the caller's, who must not see that none is touched. The 128 bytes below the stack's top may be in use.
  void *left = &from.top_, *entered = to.top_;
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%%rsi)\n\t"
      "movq %%rdi, %%rsp\n\t"
      "popq %%rdi\n\t"
      "popq %%rax\n\t"
      "jmp *%%rax\n"
      "1:\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(entered), "+S"(left)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
}

#else

inline void EmulatedStack::begin(char* memory, std::size_t bytes, void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  const auto own = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&enter), 2, static_cast<unsigned>(own),
              static_cast<unsigned>(own >> 32));
}

inline void EmulatedStack::change(EmulatedStack& from, EmulatedStack& to) {
  swapcontext(&from.context_, &to.context_);
}

#endif

}  // namespace terse::detail
