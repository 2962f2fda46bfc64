// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/core/config.hpp"

// What many threads of a kernel may do to the same place at once: operations on integers whose order doesn't show in
// the result. Elsewhere threads take turns, or there is one, but for flags and least values, which a team's threads share.
// By CUDA's functions and not by cuda::atomic_ref, since host programs include these headers, too, and would need CCCL for them;
// by the compiler's and not by std::atomic_ref, which libc++ lacks.

namespace terse::detail {

TERSE_HD inline void atomic_add(std::uint32_t* place, std::uint32_t amount) {
#ifdef __CUDA_ARCH__
  atomicAdd(place, amount);
#else
  *place += amount;
#endif
}

TERSE_HD inline void atomic_lower(std::uint64_t* place, std::uint64_t value) {
#ifdef __CUDA_ARCH__
  atomicMin(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(value));
#else
  std::uint64_t found = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (value < found &&
         !__atomic_compare_exchange_n(place, &found, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

TERSE_HD inline void atomic_or(std::uint32_t* place, std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  atomicOr(place, bits);
#else
  *place |= bits;
#endif
}

/// Counts blocks of threads, `all` of them, by one thread of each behind a wait of its block. True for the last one, which sees what
/// the others have written, once its own have waited for that thread; the count is 0 again.
TERSE_HD inline bool is_last(std::uint32_t* count, std::uint32_t all) {
#ifdef __CUDA_ARCH__
  __threadfence();
  const bool last = atomicAdd(count, 1U) + 1 == all;
  __threadfence();
#else
  const bool last = ++*count == all;
#endif
  if (last) *count = 0;
  return last;
}

/// Sets a flag to 1. Where many threads do, all but the first few only look.
TERSE_HD inline void atomic_raise(std::uint32_t* flag) {
#ifdef __CUDA_ARCH__
  if (*const_cast<const volatile std::uint32_t*>(flag) == 0) atomicOr(flag, 1U);
#else
  __atomic_store_n(flag, 1U, __ATOMIC_RELAXED);
#endif
}

/// Bit position % 8 of byte position / 8. On a device `bits` is aligned to 4 bytes.
TERSE_HD inline void atomic_set_bit(std::byte* bits, std::uint32_t position) {
#ifdef __CUDA_ARCH__
  atomic_or(reinterpret_cast<std::uint32_t*>(bits) + position / 32, 1U << position % 32);
#else
  bits[position / 8] |= std::byte{1} << position % 8;
#endif
}

}  // namespace terse::detail
