// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/pipeline/example_index.hpp"

namespace terse {

/// What a row of a micro-batch is to the memory of examples.
struct RowVisit {
  index_t slot = ExampleIndex::none;  ///< where its copy is; none: there is and will be none
  bool seen = false;                  ///< whether the copy is there already
};

}  // namespace terse
