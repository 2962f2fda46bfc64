// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "terse/core/layout.hpp"

namespace terse::detail {

/// The units of a range that a sparse compressor picks from, in order: each piece or, for Whole, all of the arena
/// between the first and the last element. Gaps between pieces are never picked before a nonzero value, and never
/// read. Tiles: compressor/tiles.hpp.
template <class G>
class UnitsOf {
 public:
  UnitsOf() = default;
  explicit UnitsOf(const Range& range) : range_(&range) {}

  bool more() const {
    const std::size_t all = range_->pieces().size();
    return at_ < (G::units().whole && all > 0 ? 1 : all);
  }
  void next() { ++at_; }
  Piece unit() const {
    if (!G::units().whole) return range_->pieces()[at_];
    const Piece& last = range_->pieces().back();
    return {0, range_->begin_offset(), last.offset + last.count - range_->begin_offset()};
  }

 private:
  const Range* range_ = nullptr;
  std::size_t at_ = 0;
};

}  // namespace terse::detail
