// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

// Reading a section where it has arrived.

namespace terse::detail {

/// A unit's positions or values as they lie in a section that arrived on a grid. What varies, the host doesn't know.
struct Arrived {
  const std::byte* base;
  index_t picks;                     // or the most
  const index_t* offset = nullptr;   // where they begin behind `base`; nullptr: there
  const index_t* counted = nullptr;  // how many there are; nullptr: `picks`

  Arrived behind(index_t bytes) const { return {base + bytes, picks, offset, counted}; }
  /// Where the number is known and the place may not be.
  Arrived exactly(index_t number) const { return {base, number, offset, nullptr}; }
  TERSE_HD const std::byte* bytes() const { return base + (offset == nullptr ? 0 : *offset); }
  TERSE_HD index_t count() const { return counted == nullptr ? picks : *counted; }
};

/// Packets are aligned on devices; elsewhere they need not be.
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
