// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/core/config.hpp"

namespace terse {

// std::popcount and std::countr_zero of <bit> are for the host only: nvcc 13.0 accepts them in device code without a
// warning, and omits the call.

namespace detail {

/// Returns the number of set bits.
TERSE_HD inline int ones_in(std::uint64_t word) {
#ifdef __CUDA_ARCH__
  return __popcll(word);
#else
  return std::popcount(word);
#endif
}

/// Returns the position of the lowest set bit, or 64 if there is none.
TERSE_HD inline int first_one_in(std::uint64_t word) {
#ifdef __CUDA_ARCH__
  return word == 0 ? 64 : __ffsll(static_cast<long long>(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

/// Returns one more than the position of the highest set bit, or 0 if there is none.
TERSE_HD inline int width_of(std::uint64_t word) {
#ifdef __CUDA_ARCH__
  return 64 - __clzll(static_cast<long long>(word));
#else
  return static_cast<int>(std::bit_width(word));
#endif
}

}  // namespace detail

}  // namespace terse
