// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/executor/grid_select.hpp"

// Selection by magnitude on a grid in many units at once, of whatever sizes: as many launches for all as for one, and the picks
// of executor/select.hpp.

namespace terse::detail {

/// Some units of one or more packets, as a kernel argument, and which blocks of a kernel work on which.
struct PickUnits {
  static constexpr int capacity = 64;
  /// Elements of a block that counts digits; of one that counts or places picks; and what a block writes or reads of a
  /// section.
  enum Share { digits, tiles, items, shares };
  TERSE_HD static constexpr index_t per_block(Share share) {
    return share == digits ? counted_together : share == tiles ? placed_together : 4 * block_threads;
  }
  /// No threshold: a unit's cut is found by its digits.
  static constexpr std::uint32_t by_rank = ~std::uint32_t{0};

  struct Unit {
    Piece piece;
    index_t k = 0;                            // picks, or the most there may be
    index_t number = 0;                       // counted through its range
    int packet = -1;                          // the one that it is of; -1: all of them
    std::uint32_t least = by_rank;            // magnitude of a pick
    const float* values = nullptr;            // of its elements, where they are picked from
    float limit = 0;                          // of what arrives
    index_t first_pick = 0;                   // among all positions
    index_t positions_at = 0, values_at = 0;  // in its packet's section
    index_t first[shares] = {};               // block
  };
  Unit units[capacity];
  int count = 0;
  index_t blocks[shares] = {};
  index_t picks = 0;

  /// With the blocks and positions that are next.
  void add(Unit unit, index_t items_of_it) {
    for (const Share share : {digits, tiles, items}) {
      unit.first[share] = blocks[share];
      blocks[share] += blocks_for(share == items ? items_of_it : unit.piece.count, per_block(share));
    }
    unit.first_pick = picks;
    picks += unit.k;
    units[count++] = unit;
  }
  TERSE_HD int of_block(Share share, index_t block) const {
    int low = 0;
    for (int size = count; size > 1;) {
      const int half = size / 2;
      if (units[low + half].first[share] <= block) low += half;
      size -= half;
    }
    return low;
  }
  TERSE_HD index_t blocks_of(Share share, int unit) const {
    return (unit + 1 < count ? units[unit + 1].first[share] : blocks[share]) - units[unit].first[share];
  }
  /// Whether one block of threads can pick from each.
  bool all_are_small() const {
    for (int u = 0; u < count; ++u)
      if (units[u].piece.count > placed_together) return false;
    return true;
  }
};

/// The block that a kernel of few blocks believes itself to be.
template <class Block>
struct LocalBlock : Block {
  index_t local;
  TERSE_HD index_t index() const { return local; }
};

/// A radix selection in each of some units, in an executor's memory: all zeros between two.
struct UnitCuts {
  std::uint32_t* histograms;  // radix_bins for each unit
  GridCut* cuts;
  std::uint32_t* counted;  // blocks that have

  static index_t words(int units) { return index_t{units} * (radix_bins + 3); }
  UnitCuts(std::uint32_t* place, int units)
      : histograms(place),
        cuts(reinterpret_cast<GridCut*>(place + index_t{units} * radix_bins)),
        counted(place + index_t{units} * (radix_bins + 2)) {}
};

/// CountDigitsKernel of each unit, whose last block then finds the digit.
struct UnitDigitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    CountDigitsKernel::Shared digits;
    GridCut cut;
    bool last;
  };
  PickUnits units;
  UnitCuts all;
  int shift;

  template <class Block>
  TERSE_HD void operator()(Block& any, Shared& shared) const {
    const int u = units.of_block(PickUnits::digits, any.index());
    const PickUnits::Unit& unit = units.units[u];
    if (unit.least != PickUnits::by_rank) return;
    LocalBlock<Block> block{any, any.index() - unit.first[PickUnits::digits]};
    const bool begins = shift == 20;
    if (block.thread() == 0)
      shared.cut = begins ? GridCut{0, static_cast<std::uint32_t>(unit.k)} : all.cuts[u];
    std::uint32_t* const histogram = all.histograms + index_t{u} * radix_bins;
    CountDigitsKernel{unit.values, unit.piece.count,
                      &shared.cut, histogram,
                      shift,       begins ? radix_bins : radix_bins / 2}(block, shared.digits);
    block.sync();
    if (block.thread() == 0)
      shared.last =
          is_last(all.counted + u, static_cast<std::uint32_t>(units.blocks_of(PickUnits::digits, u)));
    block.sync();
    if (!shared.last) return;
    FindDigitKernel::Shared none;
    FindDigitKernel{&shared.cut, histogram, shift}(block, none);
    block.sync();
    if (block.thread() == 0) all.cuts[u] = shared.cut;
  }
};

/// The k of largest magnitude, or those that reach a threshold.
struct PickOfUnit {
  const float* values;
  const GridCut* place;
  std::uint32_t least;
  GridCut cut{};

  TERSE_HD void begin() { cut = least == PickUnits::by_rank ? *place : GridCut{least, ~std::uint32_t{0}}; }
  TERSE_HD std::uint32_t ties() const { return cut.ties; }
  TERSE_HD Pick operator()(index_t i) const {
    const std::uint32_t word = magnitude_word(values[i]);
    return word > cut.magnitude ? Pick::yes : word == cut.magnitude ? Pick::tie : Pick::no;
  }
};

struct CountUnitPicksKernel {
  static constexpr bool cooperative = true;
  struct Shared {};
  PickUnits units;
  const GridCut* cuts;
  std::uint64_t* counts;  // of each tile

  template <class Block>
  TERSE_HD void operator()(Block& any, Shared&) const {
    const int u = units.of_block(PickUnits::tiles, any.index());
    const PickUnits::Unit& unit = units.units[u];
    const index_t first = unit.first[PickUnits::tiles];
    LocalBlock<Block> block{any, any.index() - first};
    using Count = CountPicksKernel<PickOfUnit>;
    typename Count::Shared none;
    Count{{unit.values, cuts + u, unit.least}, unit.piece.count, counts + first}(block, none);
  }
};

/// By sums of the counts over all tiles, whose differences are those over a unit's.
struct PlaceUnitPicksKernel {
  static constexpr bool cooperative = true;
  using Place = PlacePicksKernel<PickOfUnit>;
  using Shared = Place::Shared;
  PickUnits units;
  const GridCut* cuts;
  const std::uint64_t* before;
  std::uint32_t* positions;

  template <class Block>
  TERSE_HD void operator()(Block& any, Shared& shared) const {
    const int u = units.of_block(PickUnits::tiles, any.index());
    const PickUnits::Unit& unit = units.units[u];
    const index_t first = unit.first[PickUnits::tiles];
    LocalBlock<Block> block{any, any.index() - first};
    Place{{unit.values, cuts + u, unit.least}, unit.piece.count, before + first,
          positions + unit.first_pick,         unit.k,           nullptr}(block, shared);
  }
};

/// How many of each unit reach its threshold, at most its k.
struct UnitTotals {
  PickUnits units;
  const std::uint64_t* before;
  std::uint64_t* totals;
  TERSE_HD void operator()(index_t u) const {
    const PickUnits::Unit& unit = units.units[u];
    const index_t first = unit.first[PickUnits::tiles];
    const std::uint64_t both =
        before[first + units.blocks_of(PickUnits::tiles, static_cast<int>(u))] - before[first];
    totals[u] = (both >> 32) + (both & 0xFFFFFFFF);
  }
};

}  // namespace terse::detail
