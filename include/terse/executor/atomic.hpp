// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/core/config.hpp"

// Operations of many threads of a kernel on the same place. They are on integers, so that their order has no effect on
// the result. Elsewhere threads take turns, or there is only one. Exceptions are flags and minima, which the threads
// of a team share. CUDA's functions are used instead of cuda::atomic_ref, since host programs also include these
// headers and would need CCCL. The compiler's are used instead of std::atomic_ref, which libc++ lacks.

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

/// Counts blocks of threads, `all` in number; one thread of each block calls it after a barrier of the block. Returns
/// true in the last block, whose threads see the writes of all others after one more barrier, and resets the count to
/// 0.
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

/// Sets a flag to 1. All threads store the same word, so that a relaxed store suffices, which `volatile` is on a device.
TERSE_HD inline void atomic_raise(std::uint32_t* flag) {
#ifdef __CUDA_ARCH__
  *static_cast<volatile std::uint32_t*>(flag) = 1;
#else
  __atomic_store_n(flag, 1U, __ATOMIC_RELAXED);
#endif
}

/// Sets bit position % 8 of byte position / 8. On a device `bits` is aligned to 4 bytes.
TERSE_HD inline void atomic_set_bit(std::byte* bits, std::uint32_t position) {
#ifdef __CUDA_ARCH__
  atomic_or(reinterpret_cast<std::uint32_t*>(bits) + position / 32, 1U << position % 32);
#else
  bits[position / 8] |= std::byte{1} << position % 8;
#endif
}

}  // namespace terse::detail
