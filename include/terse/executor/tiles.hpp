// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/executor/concept.hpp"
#include "terse/executor/placed_ranges.hpp"
#include "terse/executor/tuning.hpp"

// The division of a range into tiles by a grid executor. A tile has up to 4096 elements, which are a block in the
// one shape of reductions. Pieces are passed as kernel arguments, a few at a time, so that a verb needs no memory.

namespace terse::detail {

inline constexpr index_t blocks_for(index_t items, index_t per_block) {
  return (items + per_block - 1) / per_block;
}

/// The elements [begin, end) of a piece, all of one unit.
struct Tile {
  Piece piece;
  index_t begin = 0, end = 0;
  index_t unit = 0;  // counted through the range
  index_t coming = 0,
          going = 0;    // offsets of the piece's codes in an incoming packet and in an outgoing one
  int packet = 0;       // number of the packet that it reads, if it reads only one
  index_t scales = -1;  // offset of the copy of the unit's scale in an outgoing packet; -1 for none
  index_t local = 0;    // the unit's number within the piece
  bool pads = false;    // true if 4 bytes of zeros follow that scale
};

/// Returns the entry of a table that has a number: the last one whose first number, first_of(entry), is not above it.
template <class First>
TERSE_HD int entry_of(int count, index_t number, const First& first_of) {
  int low = 0;
  for (int size = count; size > 1;) {
    const int half = size / 2;
    if (first_of(low + half) <= number) low += half;
    size -= half;
  }
  return low;
}

/// A list in a kernel's arguments.
template <class T, int most>
struct Listed {
  T of[static_cast<std::size_t>(most)];
  TERSE_HD const T& operator[](int k) const { return of[k]; }
  TERSE_HD T& operator[](int k) { return of[k]; }
};

/// A piece of a slice.
struct SlicePiece {
  Piece piece;
  index_t first_tile = 0, first_unit = 0;  // counted through the ranges
  index_t coming = 0, going = 0, scales = -1;
  int packet = 0;
  bool pads = false;  // true if zeros follow the scale of its last unit
};
struct SliceUnit {
  index_t first_tile, tiles, elements;
};
struct SliceCounts {
  int count = 0;  // of pieces
  Units units;
  index_t first_tile = 0, tiles = 0;  // of this slice
  index_t first_unit = 0, unit_count = 0;
};

/// Some pieces of a verb's ranges: a list, as a kernel argument, or a pointer to one.
template <class Pieces>
struct SliceOf : SliceCounts {
  Pieces entries;

  /// Returns the slice in the form that a kernel's code takes, for lists of any capacity.
  TERSE_HD SliceOf<const SlicePiece*> view() const { return {*this, &entries[0]}; }
  /// Returns the slice with a list of at most `most` pieces, which must suffice.
  template <int most>
  SliceOf<Listed<SlicePiece, most>> within() const {
    SliceOf<Listed<SlicePiece, most>> fewer{*this, {}};
    std::copy_n(&entries[0], count, fewer.entries.of);
    return fewer;
  }

  TERSE_HD static constexpr index_t tiles_in(index_t elements) {
    return (elements + reduction_block - 1) / reduction_block;
  }
  TERSE_HD index_t unit_size(const Piece& piece) const { return units.size == 0 ? piece.count : units.size; }

  /// Returns the entry of a tile or of a unit, counted from the slice's first.
  TERSE_HD const SlicePiece& entry_of_tile(index_t tile) const {
    return entries[entry_of(count, first_tile + tile, [&](int e) { return entries[e].first_tile; })];
  }
  TERSE_HD const SlicePiece& entry_of_unit(index_t unit) const {
    return entries[entry_of(count, first_unit + unit, [&](int e) { return entries[e].first_unit; })];
  }

  TERSE_HD Tile tile(index_t number) const {
    const SlicePiece& entry = entry_of_tile(number);
    const index_t size = unit_size(entry.piece), per_unit = tiles_in(size);
    const index_t local = first_tile + number - entry.first_tile, unit = local / per_unit;
    Tile tile{entry.piece, 0, 0, entry.first_unit + unit, entry.coming, entry.going, entry.packet};
    const index_t end = unit * size + size < entry.piece.count ? unit * size + size : entry.piece.count;
    tile.begin = unit * size + local % per_unit * reduction_block;
    tile.end = tile.begin + reduction_block < end ? tile.begin + reduction_block : end;
    if (local % per_unit == 0) {  // a unit's first tile copies its scale
      tile.scales = entry.scales;
      tile.local = unit;
      tile.pads = entry.pads && end == entry.piece.count;
    }
    return tile;
  }

  /// Returns part `number` of all tiles, each of which is cut into 2^halvings parts, for verbs whose result doesn't
  /// depend on the division of work. The part may be empty.
  TERSE_HD Tile part_of_tile(index_t number, int halvings) const {
    return part_of(tile(number >> halvings), number & ((index_t{1} << halvings) - 1), halvings);
  }
  TERSE_HD static Tile part_of(Tile tile, index_t at, int halvings) {
    const index_t size = reduction_block >> halvings, end = tile.begin + (at + 1) * size;
    tile.begin += at * size;
    if (end < tile.end) tile.end = end;
    if (at > 0) tile.scales = -1;
    return tile;
  }
  /// Returns the number of times that each tile is halved, so that few tiles still keep a device busy. The smallest
  /// tile has 512 elements, eight rows.
  int halvings() const {
    if (has_short_units()) return 0;
    int times = 0;
    while (times < 3 && tiles << times < 16384) ++times;
    return times;
  }

  /// Checks whether there are tiles, but so few that in a sum a block of threads should process each.
  bool has_few_tiles(index_t limit) const { return tiles > 0 && tiles < limit && !has_short_units(); }
  bool has_short_units() const { return units.size > 0 && units.size < reduction_block; }

  /// Returns a unit by its number in the slice.
  TERSE_HD SliceUnit unit(index_t number) const {
    const SlicePiece& entry = entry_of_unit(number);
    const index_t size = unit_size(entry.piece), local = first_unit + number - entry.first_unit;
    const index_t left = entry.piece.count - local * size, elements = left < size ? left : size;
    return {entry.first_tile + local * tiles_in(size), tiles_in(elements), elements};
  }
};

using SliceView = SliceOf<const SlicePiece*>;
/// The maximum number of pieces of a kernel, and the number for which kernels with fewer bytes of arguments exist.
inline constexpr int most_pieces = 128, few_pieces = 32;
using Slice = SliceOf<Listed<SlicePiece, most_pieces>>;

/// Returns the number of tiles of a range.
inline index_t tiles_of(const Range& range, Units units) {
  index_t tiles = 0;
  for (const Piece& piece : range.pieces()) {
    const index_t size = units.size == 0 ? piece.count : units.size;
    if (size == 0) continue;
    tiles += piece.count / size * Slice::tiles_in(size) + Slice::tiles_in(piece.count % size);
  }
  return tiles;
}
inline index_t tiles_of(PlacedRanges ranges, Units units) {
  index_t tiles = 0;
  for (const PlacedRange& placed : ranges) tiles += tiles_of(*placed.range, units);
  return tiles;
}

/// Calls use(slice, last) for one slice after the other; `last` is true for the last one. Incoming codes have `Coming`
/// bits, outgoing ones `Going`; 0 means that there are none. Outgoing scales have `scale_bytes` bytes. Empty pieces
/// have no units.
template <int Coming, int Going, class Use>
void for_each_slice(PlacedRanges ranges, Units units, index_t scale_bytes, Use use) {
  const Units apart{units.whole ? 0 : units.size, false};
  Slice slice{{}, {}};
  slice.units = apart;
  index_t tile = 0, unit = 0;
  const auto flush = [&](bool last) {
    slice.tiles = tile - slice.first_tile;
    slice.unit_count = unit - slice.first_unit;
    if (slice.count > 0 || last) use(static_cast<const Slice&>(slice), last);
    slice.count = 0;
    slice.first_tile = tile;
    slice.first_unit = unit;
  };
  for (const PlacedRange& placed : ranges) {
    unit = placed.first_unit;
    index_t coming = 0, going = placed.going, scales = placed.scales;
    // A section's scales end at a multiple of 8 bytes.
    index_t units_left = scales < 0 ? 0 : units.in_range(*placed.range);
    const bool odd = units_left * scale_bytes % 8 != 0;
    for (const Piece& piece : placed.range->pieces()) {
      if (slice.count == most_pieces) flush(false);
      if (piece.count == 0) continue;
      const index_t here = apart.in_piece(piece.count), size = apart.size == 0 ? piece.count : apart.size;
      units_left -= here;
      slice.entries[slice.count++] = {piece, tile,   unit,          coming,
                                      going, scales, placed.packet, odd && units_left == 0};
      tile += piece.count / size * Slice::tiles_in(size) + Slice::tiles_in(piece.count % size);
      unit += here;
      if constexpr (Coming > 0) coming += code_bytes<Coming>(piece.count);
      if constexpr (Going > 0) going += code_bytes<Going>(piece.count);
      if (scales >= 0) scales = units.whole ? -1 : scales + here * scale_bytes;
    }
  }
  flush(true);
}
template <int Coming, int Going, class Use>
void for_each_slice(const Range& range, Units units, Use use) {
  const PlacedRange one{&range};
  for_each_slice<Coming, Going>(PlacedRanges(&one, 1), units, 0, use);
}

}  // namespace terse::detail
