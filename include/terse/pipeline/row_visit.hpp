// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/pipeline/example_index.hpp"

namespace terse {

/// A row of a micro-batch as both sides of a boundary know it.
struct RowVisit {
  index_t slot = ExampleIndex::none;  ///< where its copy is; none: there is and will be none
  bool seen = false;                  ///< whether the copy is there already
  index_t length = 1;                 ///< positions that travel, of PipelineOptions::positions
};

}  // namespace terse
