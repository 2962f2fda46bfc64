// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "terse/executor/concept.hpp"
#include "terse/executor/matrix.hpp"

namespace terse::detail {

/// The properties of a segment that rules may read, in the executor's memory.
struct LayerShape {
  MatrixShape shape;
  bool hidden = false;
};

/// Returns the shapes of all segments.
template <Executor E>
TERSE_COLD buffer<LayerShape, typename E::memory> layer_shapes(E executor, const Layout& layout) {
  std::vector<LayerShape> shapes;
  for (const Segment& segment : layout.segments())
    shapes.push_back({segment.count > 0 ? matrix_shape(segment) : MatrixShape{}, segment.hidden});
  buffer<LayerShape, typename E::memory> table(static_cast<index_t>(shapes.size()));
  put(executor, view<const LayerShape>(shapes), out<E, LayerShape>(table.all()));
  return table;
}

}  // namespace terse::detail
