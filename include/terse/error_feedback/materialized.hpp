// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/concept.hpp"

namespace terse {

namespace detail {

/// A message stored between two passes, n floats; the base of all feedbacks' views.
struct Materialized {
  float* y = nullptr;
  index_t begin = 0;  // the arena index of y[0]
  using StreamsOf = Materialized;
  TERSE_HD auto streams() { return updates(y, begin); }
  TERSE_HD float load(index_t i) const { return y[i - begin]; }
  TERSE_HD void store(index_t i, float value) const { y[i - begin] = value; }
  /// Prefetches the block one page ahead: hardware prefetching ends at a page of memory.
  TERSE_HD void enter_block([[maybe_unused]] index_t first) const {
#ifndef __CUDA_ARCH__
    const float* const ahead = at(first) + 1024;
    for (index_t line = 0; line < alignment; line += 16) __builtin_prefetch(ahead + line, 1);
#endif
  }
  /// Returns the address of element i, for selections.
  TERSE_HD const float* at(index_t i) const { return y + (i - begin); }
};

}  // namespace detail

}  // namespace terse
