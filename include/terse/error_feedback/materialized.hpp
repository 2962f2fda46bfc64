// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/concept.hpp"

namespace terse {

namespace detail {

/// A message that waits between two passes, n floats shared by all feedbacks.
struct Materialized {
  float* y = nullptr;
  index_t begin = 0;  // the arena index of y[0]
  TERSE_HD float load(index_t i) const { return y[i - begin]; }
  TERSE_HD void store(index_t i, float value) const { y[i - begin] = value; }
  /// The address of element i, for selections.
  TERSE_HD const float* at(index_t i) const { return y + (i - begin); }
};

}  // namespace detail

}  // namespace terse
