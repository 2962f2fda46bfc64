// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "terse/core/layout.hpp"

// Which segments methods treat as what.

namespace train {

/// Vectors, such as biases, travel dense.
inline terse::Layout matrices_alone(const terse::Layout& layout) {
  terse::Layout other;
  for (terse::Segment segment : layout.segments()) {
    segment.compress = segment.shape.size() > 1;
    other.add(std::move(segment));
  }
  return other;
}

/// All matrices but the last layer's and a language model's tables are hidden ones, where `rank` columns make them smaller. Their
/// rates are `scale` times those of the others.
inline terse::Layout hidden_matrices(const terse::Layout& layout, int rank = 0, float scale = 1) {
  terse::Layout other;
  for (terse::Segment segment : layout.segments()) {
    const bool outer =
        segment.name == "last.weight" || segment.name == "words.weight" || segment.name == "places.weight";
    if (segment.shape.size() >= 2 && !outer) {
      const terse::index_t rows = segment.shape.front(), columns = segment.count / rows;
      segment.hidden = (rows + columns) * rank < rows * columns;
    }
    if (segment.hidden) segment.learning_rate_scale *= scale;
    other.add(std::move(segment));
  }
  return other;
}

}  // namespace train
