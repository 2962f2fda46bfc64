// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "terse/core/config.hpp"

// Loads and stores for kernels by one instruction, which a device has if the address is a multiple of the size.

namespace terse::detail {

/// Ends the program where a device would fault; does nothing on a device.
TERSE_HD inline void require_aligned([[maybe_unused]] const void* place, [[maybe_unused]] std::size_t bytes) {
#ifndef __CUDACC__
  if (reinterpret_cast<std::uintptr_t>(place) % bytes == 0) return;
  std::fprintf(stderr,
               "terse: emulated device: %zu bytes at %p are read or written at once, and misaligned\n", bytes,
               place);
  std::abort();
#endif
}

template <class T>
TERSE_HD T load_aligned(const std::byte* from) {
  require_aligned(from, sizeof(T));
  T value;
  std::memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof value);
  return value;
}
template <class T>
TERSE_HD void store_aligned(std::byte* to, T value) {
  require_aligned(to, sizeof(T));
  std::memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof value);
}

}  // namespace terse::detail
