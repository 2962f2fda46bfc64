// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "terse/compressor/sparse_units.hpp"
#include "terse/executor/concept.hpp"

// The partition of ranges into tiles, from which compressor/tiled.hpp picks.

namespace terse {

/// Units of at most S x S elements. A whole matrix is divided into blocks of S rows and S columns, which are smaller at
/// its lower and right edge. Any other piece is a vector: it is divided into rows of S elements, S rows per tile, and
/// the rest is a tile of one row. Blocks are in row-major order. Values may have magnitudes of up to 2^63 / Share: with
/// Share = S, each element of a sum of S^2 orthonormal waves stays within the limit of elements.
template <int S, int Share = 1>
struct PerTile {
  static_assert(S >= 2 && S <= 64, "terse: tiles have 2 to 64 rows and columns");
  static constexpr Units units() { return {}; }
  static constexpr float limit_share = 1.0F / Share;
};

namespace detail {

/// The place of a tile's elements in the arena.
struct TilePlace {
  index_t first;          // arena index of its upper left element
  index_t rows, columns;  // elements
  index_t stride;         // distance from one row to the next

  /// Returns the arena index after its last element.
  TERSE_HD index_t end() const { return first + (rows - 1) * stride + columns; }
};

/// The tiles of a piece, by number. As units of Sparse, consecutive tiles take consecutive positions of the piece, so
/// units don't overlap and their positions ascend.
template <int S>
struct PieceTiles {
  Piece piece{};
  index_t columns = 0;  // columns of a matrix; 0 for a vector

  TERSE_HD index_t count() const {
    if (columns > 0) return along(piece.count / columns) * along(columns);
    return along(piece.count / S) + (piece.count % S > 0 ? 1 : 0);
  }
  TERSE_HD TilePlace place(index_t tile) const {
    const index_t width = columns > 0 ? columns : S, across = along(width);
    const index_t row = tile / across * S, column = tile % across * S, whole = piece.count / width;
    // After a vector's whole rows there is a shorter one.
    const bool rest = row >= whole;
    return {piece.offset + (rest ? whole : row) * width + column, rest ? 1 : least(S, whole - row),
            rest ? piece.count % width : least(S, width - column), width};
  }
  TERSE_HD Piece unit(const TilePlace& place) const {
    const index_t width = place.stride, at = place.first - piece.offset;
    return {piece.segment, piece.offset + at / width * width + place.rows * (at % width),
            place.rows * place.columns};
  }

 private:
  TERSE_HD static index_t along(index_t elements) { return (elements + S - 1) / S; }
  TERSE_HD static index_t least(index_t a, index_t b) { return a < b ? a : b; }
};

/// The tiles of a range, in ascending order.
template <int S, int Share>
class UnitsOf<PerTile<S, Share>> {
 public:
  UnitsOf() = default;
  explicit UnitsOf(const Range& range) : range_(&range) { open(); }

  bool more() const { return at_ < range_->pieces().size(); }
  void next() {
    if (++tile_ < tiles_) {
      place_ = piece_.place(tile_);
    } else {
      ++at_;
      open();
    }
  }
  Piece unit() const { return piece_.unit(place_); }
  const TilePlace& place() const { return place_; }
  /// Returns the piece of the range to which the tile belongs.
  const Piece& piece() const { return piece_.piece; }

 private:
  /// Opens the first tile of the next piece that has elements.
  void open() {
    while (more() && range_->pieces()[at_].count == 0) ++at_;
    if (!more()) return;
    piece_ = {range_->pieces()[at_], range_->columns(at_)};
    tile_ = 0;
    tiles_ = piece_.count();
    place_ = piece_.place(0);
  }

  const Range* range_ = nullptr;
  std::size_t at_ = 0;  // the piece
  PieceTiles<S> piece_{};
  index_t tile_ = 0, tiles_ = 0;  // of the piece
  TilePlace place_{};
};

}  // namespace detail

}  // namespace terse
