// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/pipeline/example_index.hpp"

namespace terse {

namespace detail {

/// The properties of a row of a micro-batch that both sides of a boundary know.
struct RowVisit {
  index_t slot = detail::ExampleIndex::none;  ///< slot of its copy; `none` if it has no copy and gets none
  bool seen = false;                          ///< true: the copy exists already
  index_t length = 1;                         ///< positions that are sent, of PipelineOptions::positions
};

}  // namespace detail

}  // namespace terse
