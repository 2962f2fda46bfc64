// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/core/ones.hpp"
#include "terse/device/verbs/kernels.hpp"
#include "terse/device/verbs/last_block.hpp"
#include "terse/device/verbs/pick_units.hpp"

// Selection by magnitude on a grid, in many units of any sizes at once. It gives the host's picks, with as many
// launches for all units as for one; see executor/select.hpp. The picks depend only on the values, and all counts are
// integers, so the order of threads has no effect.

namespace terse::detail {

struct DigitCounts {
  std::uint32_t of[radix_bins];
};
template <class Block>
TERSE_HD void clear(Block& block, DigitCounts& counts) {
  for (int turn = 0; turn < radix_bins / block_threads; ++turn)
    counts.of[turn * block_threads + block.thread()] = 0;
  block.sync();
}

/// Counts the magnitudes of a block's elements, from `begin` on, by their bits from `shift` on. Ignores those below
/// the cut's magnitude and those without a bin.
template <class Block>
TERSE_HD void count_digits(Block& block, DigitCounts& counts, const float* values, index_t count,
                           index_t begin, std::uint32_t least, int shift) {
  const auto bins = static_cast<std::uint32_t>(shift == 20 ? radix_bins : radix_bins / 2);
  const int size = count - begin < counted_together ? static_cast<int>(count - begin) : counted_together;
  for (int e = block.thread(); e < size; e += block_threads) {
    // Magnitudes below the cut's wrap to large digits.
    const std::uint32_t digit = (magnitude_word(values[begin + e]) - least) >> shift;
    if (digit < bins) atomic_add(&counts.of[digit], 1);
  }
  block.sync();
}

/// Finds the digit of the k-th largest, and leaves the histogram empty. One block does this; each thread has eight
/// bins, from the highest down.
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

/// Kernel that finds one digit of each unit's cut: all blocks count, and a unit's last block finds the digit.
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
    clear(block, shared.counts);
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

/// Decision about an element: picked, or picked if there is room among the ties.
struct Pick {
  bool yes = false, tie = false;
};

/// Picks of the elements above a magnitude, and of some of the elements with that magnitude.
struct PickFromCut {
  const float* values;
  GridCut cut;

  TERSE_HD std::uint32_t ties() const { return cut.ties; }
  TERSE_HD Pick operator()(index_t i) const {
    const std::uint32_t word = magnitude_word(values[i]);
    return {word > cut.magnitude, word == cut.magnitude};
  }
};
/// Picks of the k elements of largest magnitude of each unit, or of those that reach its threshold.
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

/// Picks of the elements of one unit for which f returns true.
template <class F>
struct PicksWhere {
  F f;

  TERSE_HD PicksWhere of(const PickUnits::Unit&, int) const {
    PicksWhere here = *this;
    if constexpr (BeginsPicking<F>) here.f.begin();
    return here;
  }
  TERSE_HD static std::uint32_t ties() { return 0; }
  TERSE_HD Pick operator()(index_t i) const { return {f(i), false}; }
};

/// Kernel that counts the picks and ties before each tile of its unit, in units of several tiles.
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
      both += (pick.yes ? std::uint64_t{1} << 32 : 0) + (pick.tie ? 1 : 0);
    }
    both = block.sum(both);
    if (block.thread() == 0) memory.before[block.index()] = both;
    if (!is_last_block(block, shared.last, memory.counted + u, tiles)) return;
    const std::uint64_t total = sum_before(block, memory.before + first, tiles);
    if (block.thread() == 0) memory.totals[u] = total;
  }
};

/// The picks and ties of a tile, a bit for each element.
struct PickedTile {
  std::uint32_t picks[placed_together / 32], ties[placed_together / 32];
};

/// Writes the ascending positions of a tile's picks and first ties, as far as there is room; `before` counts the picks
/// and ties before the tile. Leaves the bits of the written ones as the picks, and returns the tile's count.
template <class Block, class F>
TERSE_HD std::uint64_t place_tile(Block& block, PickedTile& shared, const F& f, index_t count, index_t begin,
                                  std::uint64_t before, std::uint32_t* positions, index_t room) {
  static_assert(placed_together / 32 <= block_threads);
  const int thread = block.thread(), lane = thread % 32;
  const int size = count - begin < placed_together ? static_cast<int>(count - begin) : placed_together;
  for (int e = thread; e - lane < size; e += block_threads) {
    Pick pick;
    if (e < size) pick = f(begin + e);
    const std::uint32_t picks = block.ballot(pick.yes), ties = block.ballot(pick.tie);
    const int word = static_cast<int>(static_cast<unsigned>(e) / 32);
    if (lane == 0) shared.picks[word] = picks;
    if (lane == 0) shared.ties[word] = ties;
  }
  block.sync();
  // Each of the first threads has a word.
  const bool there = 32 * thread < size;
  const std::uint32_t picked = there ? shared.picks[thread] : 0, tied = there ? shared.ties[thread] : 0;
  std::uint32_t all = 0;
  const std::uint32_t both = block.exclusive_sum(
      static_cast<std::uint32_t>(ones_in(picked)) << 16 | static_cast<std::uint32_t>(ones_in(tied)), all);
  index_t picks = static_cast<index_t>(before >> 32) + (both >> 16);
  index_t ties = static_cast<index_t>(before & 0xFFFFFFFF) + (both & 0xFFFF);
  const index_t wanted = f.ties();
  std::uint32_t written = 0;
  for (std::uint32_t left = picked | tied; left != 0; left &= left - 1) {
    const int bit = first_one_in(left);
    const bool tie = (tied >> bit & 1) != 0;
    const index_t place = picks + (ties < wanted ? ties : wanted);
    if ((!tie || ties < wanted) && place < room) {
      positions[place] = static_cast<std::uint32_t>(begin + 32 * thread + bit);
      written |= 1U << bit;
    }
    (tie ? ties : picks) += 1;
  }
  if (there) shared.picks[thread] = written;
  return std::uint64_t{all >> 16} << 32 | (all & 0xFFFF);
}

/// Kernel that places the picks of all units, each from its first pick on. Runs after CountPicksKernel, which finds the
/// totals of units of several tiles.
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

/// Places picks by two launches, or one if no unit has several tiles. Afterwards `memory` has the totals.
template <GridExecutor E, class Picks>
void place_picks(E ex, const PickUnits& units, const Picks& picks, const PickMemory& memory,
                 std::uint32_t* positions) {
  const index_t tiles = units.blocks[PickUnits::places];
  if (!units.all_are_small()) ex.launch(CountPicksKernel<Picks>{units, picks, memory}, tiles);
  ex.launch(PlacePicksKernel<Picks>{units, picks, memory, positions}, tiles);
}

/// Places the k elements of largest magnitude of each unit without a threshold, and in others the elements that
/// reach the threshold.
template <GridExecutor E>
void place_largest(E ex, const PickUnits& units, const PickMemory& memory, std::uint32_t* positions) {
  for (const int shift : {20, 10, 0})
    ex.launch(FindDigitKernel{units, memory, shift}, units.blocks[PickUnits::digits]);
  place_picks(ex, units, PicksByMagnitude{memory.cuts}, memory, positions);
}

}  // namespace terse::detail
