// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace terse::detail {

/// A stack that can be left in the middle of a function and later re-entered there.
class EmulatedStack {
 public:
  /// Prepares a stack on which `entry(argument)` starts when it is first entered. `entry` never returns: at its end it
  /// leaves the stack permanently.
  void begin(char* memory, std::size_t bytes, void (*entry)(void*), void* argument);

  /// Switches from `from`, the caller's stack, to `to`.
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

// Written by hand, since swapcontext asks the system for the signal mask each time, which would take half of a
// cooperative kernel's time.

inline void EmulatedStack::begin(char* memory, std::size_t bytes, void (*entry)(void*), void* argument) {
  // Aligned as after a call, but without a return address.
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
  // The compiler saves the registers named below: all that a function must preserve, except the frame pointer. The
  // caller saves vector registers, and noipa hides from it that none is changed. The 128 bytes below the stack's top
  // may be in use.
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
