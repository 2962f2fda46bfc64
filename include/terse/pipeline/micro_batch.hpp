// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/core/layout.hpp"

// C++17 only, for stages whose framework requires C++17.

namespace terse {

/// The id of a row that must not be remembered, such as padding: it is sent whole each time.
inline constexpr std::uint64_t no_example = ~std::uint64_t{0};

/// The part of a batch that goes through the stages of a pipeline together: rows [first, first + rows).
struct MicroBatch {
  index_t index = 0;  ///< number of the micro-batch in the step, from 0
  index_t first = 0;  ///< its first row in the batch
  index_t rows = 0;   ///< number of examples; the last micro-batch may have fewer than the others
  const std::uint64_t* ids = nullptr;  ///< `rows` ids of examples, equal on all stages
  /// `rows` / (rows of the batch). The last stage multiplies the mean loss of these rows by it; then the losses and
  /// gradients of a step's micro-batches sum to those of the batch's mean.
  double weight = 1;
  bool training = true;  ///< false in `evaluate`, which has no backward pass
  /// Number of data positions in each of the `rows` rows (the remaining positions are padding); nullptr if `train` was
  /// given no lengths.
  const index_t* lengths = nullptr;
};

}  // namespace terse
