// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/picks_together.hpp"
#include "terse/compressor/sparse_sections.hpp"
#include "terse/compressor/tiles.hpp"
#include "terse/device/verbs/select.hpp"
#include "terse/executor/placed_ranges.hpp"

// The units of sections on a grid executor, in one table for pieces and for tiles. From its number, a block finds
// its unit and the unit's place in its section.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The sides of the tiles that are the units of a granularity; 0 if its units are pieces.
template <class G>
inline constexpr int side_of = 0;
template <int S, int Share>
inline constexpr int side_of<PerTile<S, Share>> = S;

/// A piece as a single tile.
template <>
struct PieceTiles<0> {
  Piece piece{};

  TERSE_HD static index_t count() { return 1; }
  TERSE_HD TilePlace place(index_t) const { return {piece.offset, 1, piece.count, piece.count}; }
  TERSE_HD Piece unit(const TilePlace&) const { return piece; }
};

/// Returns the number of candidates among a unit's n elements: all of them, or drawn ones.
template <class Selection>
TERSE_HD index_t picked_from(const Selection& selection, index_t n) {
  if constexpr (PicksAmongDrawn<Selection>) return selection.among(n);
  return n;
}
/// Returns the element at a place among the candidates.
template <class Selection>
TERSE_HD std::uint32_t element_at(index_t n, index_t among, index_t key, std::uint32_t place,
                                  const StepDraw& shared) {
  if constexpr (PicksAmongDrawn<Selection>) return Selection::element(n, among, key, place, shared);
  return place;
}

/// A unit, and the part of it that a block processes.
struct SentUnit {
  Piece piece;                      // that contains the elements
  TilePlace place;                  // of the elements
  index_t begin;                    // arena index assigned to the first number
  index_t n, among, k;              // numbers, candidates, and picks or their maximum
  index_t positions_at, values_at;  // in the section, unless its shape varies
  index_t number;                   // in its range
  int packet;                       // its packet; -1: all packets
  int entry;                        // in the table
  index_t block = 0, blocks = 1;    // the block's number among the unit's blocks
};

/// The units of some pieces of one or more ranges, as a kernel argument, and the assignment of a kernel's blocks to
/// units. A tile has one block.
template <class Sections>
struct SentUnits {
  using Coder = typename Sections::Coder;
  static constexpr int side = side_of<typename Sections::Granularity>, capacity = 64;
  /// Kinds of work: elements, and items of a section that are checked.
  enum Share { elements, items, shares };
  static constexpr index_t items_per_block = 4 * block_threads;

  /// Number of a unit's picks; tiles have at most 4096 elements.
  using Picks = std::conditional_t<(side > 0), std::uint16_t, std::uint32_t>;
  struct Entry {
    PieceTiles<side> tiles;
    index_t number;   // of the first unit in its range
    index_t section;  // offset of its bytes
    int packet;
    Picks picks[side > 0 ? 4 : 1];  // by shape
    std::uint32_t first[shares];    // first block of each share
  };
  Sections sections;
  Entry entries[capacity] = {};
  int count = 0;
  index_t blocks[shares] = {};

  /// Adds a piece of `packet`, with picks(n) picks of n numbers each, and returns the bytes of its units.
  template <class PicksOf>
  index_t add(const PieceTiles<side>& tiles, index_t number, index_t section, int packet,
              const PicksOf& picks) {
    Entry& entry = entries[count++];
    entry = {tiles, number, section, packet, {}, {}};
    for (const Share share : {elements, items})
      entry.first[share] = static_cast<std::uint32_t>(blocks[share]);
    const index_t units = tiles.count();
    if constexpr (side > 0) {
      const index_t width = tiles.columns > 0 ? tiles.columns : side, rows = tiles.piece.count / width;
      const index_t rest = tiles.piece.count % width;
      const index_t heights[] = {side, rows % side}, widths[] = {side, rest > 0 ? rest : width % side};
      for (int shape = 0; shape < 4; ++shape)
        entry.picks[shape] =
            static_cast<Picks>(picks((shape == 3 && rest > 0 ? 1 : heights[shape / 2]) * widths[shape % 2]));
      blocks[elements] += units;
      blocks[items] += units;
    } else {
      const index_t n = tiles.piece.count, k = picks(n);
      entry.picks[0] = static_cast<Picks>(k);
      blocks[elements] += std::max(index_t{1}, blocks_for(n, placed_together));
      blocks[items] +=
          blocks_for(std::max({index_t{1}, k, Coder::floats(k), sections.selection.index_bytes(n, k) / 8}),
                     items_per_block);
    }
    const TilePlace last = tiles.place(units - 1);
    return before(entry, last) + bytes(entry, last.rows, last.columns);
  }
  TERSE_HD SentUnit unit(int e, index_t tile) const {
    const Entry& entry = entries[e];
    const TilePlace place = entry.tiles.place(tile);
    const Piece numbers = entry.tiles.unit(place);
    const index_t n = numbers.count, k = entry.picks[shape_of(place.rows, place.columns)];
    const index_t at = entry.section + before(entry, place) + (Sections::variable ? 8 : 0);
    return {entry.tiles.piece,
            place,
            numbers.offset,
            n,
            picked_from(sections.selection, n),
            k,
            at,
            at + sections.selection.index_bytes(n, k),
            entry.number + tile,
            entry.packet,
            e};
  }
  /// Returns the unit of a block. With the share `elements`, `place` is the place of the block's elements.
  TERSE_HD SentUnit part(Share share, index_t block) const {
    const int e = entry_of(count, block, [&](int k) { return entries[k].first[share]; });
    const index_t within = block - entries[e].first[share];
    if constexpr (side > 0) return unit(e, within);
    SentUnit here = unit(e, 0);
    here.block = within;
    here.blocks = (e + 1 < count ? entries[e + 1].first[share] : blocks[share]) - entries[e].first[share];
    if (share == elements) {
      const index_t first = within * placed_together, left = here.n - first;
      const index_t size = left < placed_together ? left : placed_together;
      here.place = {here.begin + first, 1, size, size};
    }
    return here;
  }

 private:
  /// Returns the shape of a tile: bit 0 if it is narrow, bit 1 if it is low.
  TERSE_HD static int shape_of(index_t rows, index_t columns) {
    return side == 0 ? 0 : (rows < side ? 2 : 0) + (columns < side ? 1 : 0);
  }
  TERSE_HD index_t bytes(const Entry& entry, index_t rows, index_t columns) const {
    return sections.bytes(rows * columns, entry.picks[shape_of(rows, columns)]);
  }
  /// Returns the bytes of a row of tiles.
  TERSE_HD index_t row_bytes(const Entry& entry, index_t rows, index_t width) const {
    return width / side * bytes(entry, rows, side) +
           (width % side > 0 ? bytes(entry, rows, width % side) : 0);
  }
  /// Returns the bytes of the tiles before a tile.
  TERSE_HD index_t before(const Entry& entry, const TilePlace& place) const {
    if constexpr (side > 0) {
      const index_t at = place.first - entry.tiles.piece.offset, width = place.stride, row = at / width;
      return row / side * row_bytes(entry, side, width) +
             (row % side > 0 ? row_bytes(entry, row % side, width) : 0) +
             at % width / side * bytes(entry, place.rows, side);
    }
    return 0;
  }
};

/// Calls use(units) for slices of the units of `ranges`; a range's section begins at its `going`. With several ranges,
/// each has a separate packet. Calls told(r, bytes) for each range.
template <class Sections, class Picks, class Use, class Told>
void for_each_table(const Sections& sections, PlacedRanges ranges, const Picks& picks, const Use& use,
                    const Told& told) {
  using Table = SentUnits<Sections>;
  Table units{sections};
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    const Range& range = *ranges[r].range;
    index_t number = 0, at = ranges[r].going;
    const auto add = [&](const PieceTiles<Table::side>& tiles) {
      at += units.add(tiles, number, at, ranges.size() > 1 ? static_cast<int>(r) : -1, picks);
      number += tiles.count();
      if (units.count < Table::capacity) return;
      use(static_cast<const Table&>(units));
      units = Table{sections};
    };
    if constexpr (Table::side > 0) {
      for (std::size_t p = 0; p < range.pieces().size(); ++p)
        if (range.pieces()[p].count > 0) add({range.pieces()[p], range.columns(p)});
    } else {
      for (typename Sections::UnitsOf all(range); all.more(); all.next()) add({all.unit()});
    }
    told(static_cast<int>(r), at - ranges[r].going);
  }
  if (units.count > 0) use(static_cast<const Table&>(units));
}
template <class Sections, class Use>
void for_each_table(const Sections& sections, PlacedRanges ranges, const Use& use) {
  for_each_table(
      sections, ranges, [&](index_t n) { return sections.selection.most(n); }, use, [](int, index_t) {});
}

TERSE_NUMERICS_END

}  // namespace terse::detail
