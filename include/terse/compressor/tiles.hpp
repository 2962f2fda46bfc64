// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/compressor/sparse_units.hpp"
#include "terse/executor/concept.hpp"

// How ranges fall into tiles, which compressor/tiled.hpp picks from.

namespace terse {

/// Units of at most S x S elements. A whole matrix is cut into blocks of S rows and S columns, smaller ones at its lower and
/// right edge; anything else, which is a vector, into rows of S elements, S of them to a tile, and what is left over, which
/// is a tile of one row. Block after block, row of blocks after row of blocks. Values may be of a magnitude of 2^63 times
/// 1 / Share: of a sum of S^2 orthonormal waves each element stays within what elements stay within with Share = S.
template <int S, int Share = 1>
struct PerTile {
  static_assert(S >= 2 && S <= 64, "terse: tiles have 2 to 64 rows and columns");
  static constexpr Units units() { return {}; }
  static constexpr float limit_share = 1.0F / Share;
};

namespace detail {

/// Where a tile's elements are in the arena.
struct TilePlace {
  index_t first;          // arena index of its upper left element
  index_t rows, columns;  // elements
  index_t stride;         // from one row to the next
};

/// The tiles of a range, in order. As a unit of Sparse, tile after tile takes the places of its piece's elements, so that
/// units don't overlap and their positions ascend.
template <int S, int Share>
class UnitsOf<PerTile<S, Share>> {
 public:
  UnitsOf() = default;
  explicit UnitsOf(const Range& range) : range_(&range) { open(); }

  bool more() const { return at_ < range_->pieces().size(); }
  void next() {
    done_ += tile_.rows * tile_.columns;
    column_ += tile_.columns;
    if (column_ == columns_) {
      column_ = 0;
      row_ += tile_.rows;
    }
    if (done_ == range_->pieces()[at_].count) {
      ++at_;
      open();
    } else {
      cut();
    }
  }
  Piece unit() const {
    const Piece& piece = range_->pieces()[at_];
    return {piece.segment, piece.offset + done_, tile_.rows * tile_.columns};
  }
  const TilePlace& place() const { return tile_; }

 private:
  /// The first tile of the next piece that has elements.
  void open() {
    while (more() && range_->pieces()[at_].count == 0) ++at_;
    row_ = column_ = done_ = 0;
    if (more()) cut();
  }
  void cut() {
    const Piece& piece = range_->pieces()[at_];
    const index_t matrix = range_->columns(at_);
    columns_ = matrix > 0 ? matrix : std::min<index_t>(S, piece.count - row_ * S);
    const index_t rows = matrix > 0 ? piece.count / matrix : std::max<index_t>(1, piece.count / S);
    tile_.columns = std::min<index_t>(S, columns_ - column_);
    // Behind a vector's whole rows there is one more, shorter.
    tile_.rows = std::max<index_t>(1, std::min<index_t>(S, rows - row_));
    tile_.stride = matrix > 0 ? matrix : S;
    tile_.first = piece.offset + row_ * tile_.stride + column_;
  }

  const Range* range_ = nullptr;
  std::size_t at_ = 0;                       // the piece
  index_t row_ = 0, column_ = 0, done_ = 0;  // within it
  index_t columns_ = 0;                      // of its rows from row_ on
  TilePlace tile_{};
};

}  // namespace detail

}  // namespace terse
