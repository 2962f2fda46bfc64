// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/layout.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/tuning.hpp"

// Work of a kernel's last block with the results of all blocks, without a separate launch.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Calls is_last for a whole block, through `shared` in its shared memory. The threads of the last of `all` blocks see
/// all writes of the other blocks' threads before their calls.
template <class Block>
TERSE_HD bool is_last_block(Block& block, bool& shared, std::uint32_t* count, index_t all) {
  block.sync();
  if (block.thread() == 0) shared = is_last(count, static_cast<std::uint32_t>(all));
  block.sync();
  return shared;
}

/// Replaces each of `count` numbers by the sum of the previous ones, with all threads of a block. Returns the sum of
/// all.
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
