// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "terse/device/verbs/kernels.hpp"
#include "terse/device/verbs/last_block.hpp"

// Selection by magnitude on a grid in many units at once, of whatever sizes: as many launches for all as for one, with the host's
// picks, see executor/select.hpp. What is picked is a function of the values alone, and all counts are integers, so that no order
// of threads shows.

namespace terse::detail {

/// Where a radix selection stands: the k-th largest magnitude is `magnitude` or above, and `ties` of those that are
/// belong to the k. In the end it is that magnitude.
struct GridCut {
  std::uint32_t magnitude, ties;
};

inline constexpr int radix_bins = 2048;
/// Elements that one block counts before it adds its counters to everybody's.
inline constexpr index_t counted_together = 16384;
/// Elements that one block places.
inline constexpr index_t placed_together = 4096;

TERSE_HD inline std::uint32_t magnitude_word(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU;
}

/// Some units of one or more packets, as a kernel argument, and which blocks of a kernel work on which.
struct PickUnits {
  static constexpr int capacity = 64;
  /// Elements, of those that are picked from, of a block that counts digits, and of one that counts or places picks; elements
  /// of one that sums up; and what a block writes or reads of a section.
  enum Share { digits, places, tiles, items, shares };
  TERSE_HD static constexpr index_t per_block(Share share) {
    return share == digits ? counted_together : share == items ? 4 * block_threads : placed_together;
  }
  /// No threshold: a unit's cut is found by its digits.
  static constexpr std::uint32_t by_rank = ~std::uint32_t{0};

  struct Unit {
    Piece piece;
    index_t among = 0;              // elements that it is picked from: all, or what was picked before
    index_t k = 0;                  // picks, or the most there may be
    index_t number = 0;             // counted through its range
    int packet = -1;                // the one that it is of; -1: all of them
    std::uint32_t least = by_rank;  // magnitude of a pick
    const float* values = nullptr;  // of those, side by side
    float limit = 0;                // of what arrives
    index_t first_pick = 0;         // among all positions
    index_t positions_at = 0, values_at = 0;  // in its packet's section
    index_t first[shares] = {};               // block
  };
  Unit units[capacity];
  int count = 0;
  index_t blocks[shares] = {};
  index_t picks = 0;

  /// With the blocks and positions that are next.
  void add(Unit unit, index_t items_of_it) {
    for (const Share share : {digits, places, tiles, items}) {
      const index_t size = share == items ? items_of_it : share == tiles ? unit.piece.count : unit.among;
      unit.first[share] = blocks[share];
      blocks[share] += blocks_for(size, per_block(share));
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
      if (units[u].among > placed_together) return false;
    return true;
  }
};

/// What a selection in some units leaves in an executor's memory from one kernel to the next. Counts are of picks, in the upper
/// half, and ties.
struct PickMemory {
  std::uint32_t* histograms;  // radix_bins for each unit
  GridCut* cuts;
  std::uint32_t* counted;  // blocks that have
  std::uint64_t* totals;   // of units
  std::uint64_t* before;   // each tile of units of several, in its unit

  static constexpr index_t zeros(int units) { return index_t{units} * (radix_bins + 3); }
  static constexpr index_t counts(int units, index_t tiles) { return units + tiles; }
  /// `zeros_of` is all zeros before and between selections, but for the cuts.
  TERSE_HD PickMemory(std::uint32_t* zeros_of, std::uint64_t* counts_of, int units)
      : histograms(zeros_of),
        cuts(reinterpret_cast<GridCut*>(zeros_of + index_t{units} * radix_bins)),
        counted(zeros_of + index_t{units} * (radix_bins + 2)),
        totals(counts_of),
        before(counts_of + units) {}
};

/// Both.
TERSE_HD inline index_t picks_in(std::uint64_t count) {
  return static_cast<index_t>((count >> 32) + (count & 0xFFFFFFFF));
}

struct DigitCounts {
  std::uint32_t of[radix_bins];
};

/// Counts the magnitudes of a block's elements, from `begin` on, by their bits from `shift` on, as far as they are not below the
/// cut's and there are bins for them.
template <class Block>
TERSE_HD void count_digits(Block& block, DigitCounts& counts, const float* values, index_t count,
                           index_t begin, std::uint32_t least, int shift) {
  const auto bins = static_cast<std::uint32_t>(shift == 20 ? radix_bins : radix_bins / 2);
  for (int bin = block.thread(); bin < radix_bins; bin += block_threads) counts.of[bin] = 0;
  block.sync();
  const index_t end = begin + counted_together < count ? begin + counted_together : count;
  for (index_t i = begin + block.thread(); i < end; i += block_threads) {
    // What lies below wraps to far above.
    const std::uint32_t digit = (magnitude_word(values[i]) - least) >> shift;
    if (digit < bins) atomic_add(&counts.of[digit], 1);
  }
  block.sync();
}

/// Finds the digit of the k-th largest, and leaves the histogram empty. By one block; each thread has eight bins, from the
/// highest on.
template <class Block>
TERSE_HD void find_digit(Block& block, std::uint32_t* histogram, int shift, GridCut& cut) {
  constexpr int own = radix_bins / block_threads;
  int bin = radix_bins - 1 - block.thread() * own;
  std::uint32_t* const mine = histogram + bin;  // and downwards
  const GridCut now = cut;
  std::uint32_t sum = 0, all = 0;
  for (int b = 0; b < own; ++b) sum += mine[-b];
  const std::uint32_t before = block.exclusive_sum(sum, all);
  if (before < now.ties && now.ties - before <= sum) {
    std::uint32_t left = now.ties - before;
    while (histogram[bin] < left) left -= histogram[bin--];
    cut = {now.magnitude + (static_cast<std::uint32_t>(bin) << shift), left};
  }
  for (int b = 0; b < own; ++b) mine[-b] = 0;
  block.sync();
}

/// One digit of each unit's cut: all blocks count, and a unit's last one finds it.
struct FindDigitKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    DigitCounts counts;
    GridCut cut;
    bool last;
  };
  PickUnits units;
  PickMemory memory;
  int shift;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int u = units.of_block(PickUnits::digits, block.index());
    const PickUnits::Unit& unit = units.units[u];
    if (unit.least != PickUnits::by_rank) return;
    if (block.thread() == 0)
      shared.cut = shift == 20 ? GridCut{0, static_cast<std::uint32_t>(unit.k)} : memory.cuts[u];
    block.sync();
    count_digits(block, shared.counts, unit.values, unit.among,
                 (block.index() - unit.first[PickUnits::digits]) * counted_together, shared.cut.magnitude,
                 shift);
    std::uint32_t* const histogram = memory.histograms + index_t{u} * radix_bins;
    for (int bin = block.thread(); bin < radix_bins; bin += block_threads)
      if (shared.counts.of[bin] != 0) atomic_add(&histogram[bin], shared.counts.of[bin]);
    if (!is_last_block(block, shared.last, memory.counted + u, units.blocks_of(PickUnits::digits, u))) return;
    find_digit(block, histogram, shift, shared.cut);
    if (block.thread() == 0) memory.cuts[u] = shared.cut;
  }
};

/// What becomes of an element.
enum class Pick : std::uint8_t { no, tie, yes };

/// Those above a magnitude, and some of those that have it.
struct PickFromCut {
  const float* values;
  GridCut cut;

  TERSE_HD std::uint32_t ties() const { return cut.ties; }
  TERSE_HD Pick operator()(index_t i) const {
    const std::uint32_t word = magnitude_word(values[i]);
    return word > cut.magnitude ? Pick::yes : word == cut.magnitude ? Pick::tie : Pick::no;
  }
};
/// The k of largest magnitude of each unit, or those that reach its threshold.
struct PicksByMagnitude {
  const GridCut* cuts;

  TERSE_HD PickFromCut of(const PickUnits::Unit& unit, int u) const {
    return {unit.values, unit.least == PickUnits::by_rank ? cuts[u] : GridCut{unit.least, ~std::uint32_t{0}}};
  }
};

template <class F>
concept BeginsPicking = requires(F& f) {
  f.begin();
};

/// Those of which f says so, of one unit.
template <class F>
struct PicksWhere {
  F f;

  TERSE_HD PicksWhere of(const PickUnits::Unit&, int) const {
    PicksWhere here = *this;
    if constexpr (BeginsPicking<F>) here.f.begin();
    return here;
  }
  TERSE_HD static std::uint32_t ties() { return 0; }
  TERSE_HD Pick operator()(index_t i) const { return f(i) ? Pick::yes : Pick::no; }
};

/// Picks and ties before each tile of its unit, in units of several.
template <class Picks>
struct CountPicksKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    bool last;
  };
  PickUnits units;
  Picks picks;
  PickMemory memory;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int u = units.of_block(PickUnits::places, block.index());
    const PickUnits::Unit& unit = units.units[u];
    const index_t tiles = units.blocks_of(PickUnits::places, u), first = unit.first[PickUnits::places];
    if (tiles == 1) return;
    const auto f = picks.of(unit, u);
    std::uint64_t both = 0;
    const index_t begin = (block.index() - first) * placed_together, count = unit.among;
    const index_t end = begin + placed_together < count ? begin + placed_together : count;
    for (index_t i = begin + block.thread(); i < end; i += block_threads) {
      const Pick pick = f(i);
      both += pick == Pick::yes ? std::uint64_t{1} << 32 : pick == Pick::tie ? 1 : 0;
    }
    both = block.sum(both);
    if (block.thread() == 0) memory.before[block.index()] = both;
    if (!is_last_block(block, shared.last, memory.counted + u, tiles)) return;
    const std::uint64_t total = sum_before(block, memory.before + first, tiles);
    if (block.thread() == 0) memory.totals[u] = total;
  }
};

struct PickedTile {
  Pick pick[placed_together];
};

/// Writes the positions of a tile's picks and of the first ties, ascending, as far as there is room, with so many picks and ties before
/// it. Returns those of the tile.
template <class Block, class F>
TERSE_HD std::uint64_t place_tile(Block& block, PickedTile& shared, const F& f, index_t count, index_t begin,
                                  std::uint64_t before, std::uint32_t* positions, index_t room) {
  constexpr int own = placed_together / block_threads;
  const int thread = block.thread();
  for (int e = thread; e < placed_together; e += block_threads)
    shared.pick[e] = begin + e < count ? f(begin + e) : Pick::no;
  block.sync();
  const Pick* const mine = shared.pick + thread * own;
  std::uint32_t both = 0, all = 0;
  for (int e = 0; e < own; ++e) both += mine[e] == Pick::yes ? 1U << 16 : mine[e] == Pick::tie ? 1U : 0U;
  both = block.exclusive_sum(both, all);
  index_t picks = static_cast<index_t>(before >> 32) + (both >> 16);
  index_t ties = static_cast<index_t>(before & 0xFFFFFFFF) + (both & 0xFFFF);
  const index_t wanted = f.ties();
  for (int e = 0; e < own; ++e) {
    const Pick pick = mine[e];
    if (pick == Pick::no) continue;
    const index_t place = picks + (ties < wanted ? ties : wanted);
    if ((pick == Pick::yes || ties < wanted) && place < room)
      positions[place] = static_cast<std::uint32_t>(begin + thread * own + e);
    (pick == Pick::yes ? picks : ties) += 1;
  }
  return std::uint64_t{all >> 16} << 32 | (all & 0xFFFF);
}

/// Of all units, each from its first pick on. Behind CountPicksKernel, which knows the totals of units of several tiles.
template <class Picks>
struct PlacePicksKernel {
  static constexpr bool cooperative = true;
  using Shared = PickedTile;
  PickUnits units;
  Picks picks;
  PickMemory memory;
  std::uint32_t* positions;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int u = units.of_block(PickUnits::places, block.index());
    const PickUnits::Unit& unit = units.units[u];
    const bool alone = units.blocks_of(PickUnits::places, u) == 1;
    const std::uint64_t here =
        place_tile(block, shared, picks.of(unit, u), unit.among,
                   (block.index() - unit.first[PickUnits::places]) * placed_together,
                   alone ? 0 : memory.before[block.index()], positions + unit.first_pick, unit.k);
    if (alone && block.thread() == 0) memory.totals[u] = here;
  }
};

/// By two launches, or one if no unit has several tiles; then `memory` has the totals.
template <GridExecutor E, class Picks>
void place_picks(E ex, const PickUnits& units, const Picks& picks, const PickMemory& memory,
                 std::uint32_t* positions) {
  const index_t tiles = units.blocks[PickUnits::places];
  if (!units.all_are_small()) ex.launch(CountPicksKernel<Picks>{units, picks, memory}, tiles);
  ex.launch(PlacePicksKernel<Picks>{units, picks, memory, positions}, tiles);
}

/// The positions of the k of largest magnitude of each unit that goes by rank, and of what reaches the threshold of others.
template <GridExecutor E>
void place_largest(E ex, const PickUnits& units, const PickMemory& memory, std::uint32_t* positions) {
  for (const int shift : {20, 10, 0})
    ex.launch(FindDigitKernel{units, memory, shift}, units.blocks[PickUnits::digits]);
  place_picks(ex, units, PicksByMagnitude{memory.cuts}, memory, positions);
}

}  // namespace terse::detail
