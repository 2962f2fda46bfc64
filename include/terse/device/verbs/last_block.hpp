// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/layout.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/tuning.hpp"

// What one block of a kernel does with what all of them have left in memory: the last one that is done, without a launch of its
// own.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// is_last for a whole block, by a place in its shared memory: the threads of the last of `all` blocks see what the threads of
/// the others had written when they came here.
template <class Block>
TERSE_HD bool is_last_block(Block& block, bool& shared, std::uint32_t* count, index_t all) {
  block.sync();
  if (block.thread() == 0) shared = is_last(count, static_cast<std::uint32_t>(all));
  block.sync();
  return shared;
}

/// Each of `count` numbers becomes the sum of those before it, by all threads of a block. Returns the sum of all.
template <class Block>
TERSE_HD std::uint64_t sum_before(Block& block, std::uint64_t* numbers, index_t count) {
  constexpr int own = 8;
  std::uint64_t before = 0;
  for (index_t begin = block.thread() * own; begin - block.thread() * own < count;
       begin += block_threads * own) {
    std::uint64_t number[own], sum = 0, all = 0;
    TERSE_UNROLL
    for (int k = 0; k < own; ++k) sum += number[k] = begin + k < count ? numbers[begin + k] : 0;
    std::uint64_t here = before + block.exclusive_sum(sum, all);
    TERSE_UNROLL
    for (int k = 0; k < own; ++k) {
      if (begin + k < count) numbers[begin + k] = here;
      here += number[k];
    }
    before += all;
  }
  return before;
}

TERSE_NUMERICS_END

}  // namespace terse::detail
