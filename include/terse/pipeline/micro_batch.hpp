// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/core/layout.hpp"

// This header keeps to C++17, so that a stage's unit can, whose framework is held there.

namespace terse {

/// The id of a row that no memory shall be kept of, such as padding: it travels whole each time.
inline constexpr std::uint64_t no_example = ~std::uint64_t{0};

/// The part of a batch that goes through the stages of a pipeline at once: its rows [first, first + rows).
struct MicroBatch {
  index_t index = 0;                   ///< counts the step's micro-batches from 0
  index_t first = 0;                   ///< its first row in the batch
  index_t rows = 0;                    ///< examples; the last micro-batch may have fewer than the others
  const std::uint64_t* ids = nullptr;  ///< `rows` ids of examples, alike on all stages
  /// rows / rows of the batch. The last stage multiplies the mean loss of these rows by it, so that losses and gradients
  /// of a step's micro-batches add up to those of the batch's mean.
  double weight = 1;
  bool training = true;  ///< false in `evaluate`: no backward pass follows
  /// `rows` numbers of positions that are data, the others being padding; nullptr where `train` was given none.
  const index_t* lengths = nullptr;
};

}  // namespace terse
