// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/device/verbs/kernels.hpp"

// Units of a selection on a grid, as a kernel argument, and its memory; see select_units.hpp.

namespace terse::detail {

/// State of a radix selection: the k-th largest magnitude is at least `magnitude`, and `ties` of the elements that
/// share its digits so far belong to the k. In the end `magnitude` is the k-th largest.
struct GridCut {
  std::uint32_t magnitude, ties;
};

inline constexpr int radix_bins = 2048;
/// Elements that one block counts before it adds its counters to the common ones.
inline constexpr index_t counted_together = 16384;
/// Elements that one block places.
inline constexpr index_t placed_together = 4096;

TERSE_HD inline std::uint32_t magnitude_word(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU;
}

/// Some units of one or more packets, as a kernel argument, and the assignment of a kernel's blocks to them.
struct PickUnits {
  static constexpr int capacity = 64;
  /// Kinds of work, with a number of elements per block each: candidates whose digits are counted, candidates whose
  /// picks are counted or placed, and items of a section that are written.
  enum Share { digits, places, items, shares };
  TERSE_HD static constexpr index_t per_block(Share share) {
    return share == digits ? counted_together : share == items ? 4 * block_threads : placed_together;
  }
  /// Value of `least` without a threshold: the unit's cut is found by its digits.
  static constexpr std::uint32_t by_rank = ~std::uint32_t{0};

  struct Unit {
    Piece piece;
    index_t among = 0;                        // candidates, to be picked from: all elements, or drawn ones
    index_t k = 0;                            // picks, or their maximum
    int packet = -1;                          // its packet
    std::uint32_t least = by_rank;            // least magnitude of a pick
    const float* values = nullptr;            // of the candidates, adjacent
    index_t first_pick = 0;                   // among all positions
    index_t positions_at = 0, values_at = 0;  // in its packet's section
    index_t first[shares] = {};               // first block of each share
  };
  Unit units[capacity];
  int count = 0;
  index_t blocks[shares] = {};
  index_t picks = 0;

  /// Adds a unit, with the next blocks and positions. Its items are added when its picks are known, unit after unit.
  void add(Unit unit) {
    for (const Share share : {digits, places}) {
      unit.first[share] = blocks[share];
      blocks[share] += blocks_for(unit.among, per_block(share));
    }
    unit.first_pick = picks;
    picks += unit.k;
    units[count++] = unit;
  }
  void add_items(Unit& unit, index_t items_of_it) {
    unit.first[items] = blocks[items];
    blocks[items] += blocks_for(items_of_it, per_block(items));
  }
  TERSE_HD int of_block(Share share, index_t block) const {
    return entry_of(count, block, [&](int u) { return units[u].first[share]; });
  }
  TERSE_HD index_t blocks_of(Share share, int unit) const {
    return (unit + 1 < count ? units[unit + 1].first[share] : blocks[share]) - units[unit].first[share];
  }
  /// Checks whether one block of threads can pick from each unit.
  bool all_are_small() const {
    for (int u = 0; u < count; ++u)
      if (units[u].among > placed_together) return false;
    return true;
  }
};

/// Memory of a selection in some units, kept in the executor's memory between kernels. A count contains picks in its
/// upper half and ties in its lower half.
struct PickMemory {
  std::uint32_t* histograms;  // radix_bins for each unit
  GridCut* cuts;
  std::uint32_t* counted;  // blocks that have counted
  std::uint64_t* totals;   // of units
  std::uint64_t* before;   // picks and ties before each tile, in units of several tiles

  static constexpr index_t zeros(int units) { return index_t{units} * (radix_bins + 3); }
  static constexpr index_t counts(int units, index_t tiles) { return units + tiles; }
  /// Divides the memory. `zeros_of` is all zeros before and between selections, except for the cuts.
  TERSE_HD PickMemory(std::uint32_t* zeros_of, std::uint64_t* counts_of, int units)
      : histograms(zeros_of),
        cuts(reinterpret_cast<GridCut*>(zeros_of + index_t{units} * radix_bins)),
        counted(zeros_of + index_t{units} * (radix_bins + 2)),
        totals(counts_of),
        before(counts_of + units) {}
};

/// Returns the number of picks and ties in a count.
TERSE_HD inline index_t picks_in(std::uint64_t count) {
  return static_cast<index_t>((count >> 32) + (count & 0xFFFFFFFF));
}

}  // namespace terse::detail
