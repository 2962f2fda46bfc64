// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

// In-place access to received sections.

namespace terse::detail {

/// The positions or values of a unit within a received section on a grid. The host doesn't know sizes that vary.
struct Arrived {
  const std::byte* base;
  index_t picks;                     // or their maximum
  const index_t* offset = nullptr;   // their offset from `base`; nullptr: 0
  const index_t* counted = nullptr;  // their number; nullptr: `picks`

  Arrived behind(index_t bytes) const { return {base + bytes, picks, offset, counted}; }
  /// Returns a view with a known number of picks, whose offset may be unknown.
  Arrived exactly(index_t number) const { return {base, number, offset, nullptr}; }
  TERSE_HD const std::byte* bytes() const { return base + (offset == nullptr ? 0 : *offset); }
  TERSE_HD index_t count() const { return counted == nullptr ? picks : *counted; }
};

/// Loads a value; packets are aligned on devices, but not always on hosts.
template <class T>
TERSE_HD T load_from_wire(const std::byte* from) {
  T value;
#ifdef __CUDA_ARCH__
  std::memcpy(&value, __builtin_assume_aligned(from, alignof(T)), sizeof value);
#else
  std::memcpy(&value, from, sizeof value);
#endif
  return value;
}

}  // namespace terse::detail
