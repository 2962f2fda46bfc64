// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "terse/compressor/picks_together.hpp"
#include "terse/compressor/sparse_functors.hpp"
#include "terse/compressor/sparse_units.hpp"
#include "terse/device/verbs/select.hpp"
#include "terse/executor/placed_ranges.hpp"

// Sections of sparse compressors (TopK, Threshold, RandomK) on a grid executor, with any coder of values. One kernel
// handles the sections of several packets.

namespace terse::detail {

template <class Selection>
index_t picked_from(const Selection& selection, index_t n) {
  if constexpr (PicksAmongDrawn<Selection>) return selection.among(n);
  return n;
}

TERSE_NUMERICS_BEGIN

/// Returns the element of a unit at a place among its candidates.
template <class Selection>
TERSE_HD std::uint32_t element_at(const PickUnits::Unit& unit, std::uint32_t place, const StepDraw& shared) {
  if constexpr (PicksAmongDrawn<Selection>)
    return Selection::element(unit.piece.count, unit.among, unit.piece.offset, place, shared);
  return place;
}

/// Functor that stores the compensated message through the error feedback, and raises `bad` for values that are not
/// finite.
template <class F>
struct Materialize {
  F compensate;
  std::uint32_t* bad;

  using StreamsOf = Materialize;
  TERSE_HD auto streams() requires NamesStreams<F> { return compensate.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(compensate, piece); }
  TERSE_HD void enter_block(index_t first) { detail::enter_block(compensate, first); }
  template <class... Sum>
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    if (compensate(piece, i, keep, sum...).bad != 0) atomic_raise(bad);
  }
};

/// Positions of picks: listed in memory, or drawn (DrawnPicks).
struct ListedPicks {
  const std::uint32_t* positions;
  TERSE_HD std::uint32_t operator()(const PickUnits::Unit& unit, index_t e) const {
    return positions[unit.first_pick + e];
  }
};
template <class Selection>
struct DrawnPicks {
  StepDraw shared;
  TERSE_HD std::uint32_t operator()(const PickUnits::Unit& unit, index_t e) const {
    return Selection::drawn(unit.piece.count, unit.k, unit.piece.offset, e, shared);
  }
};

/// Returns 32 bits of the part of a section that contains the positions, see Positions.
template <class Picks>
TERSE_HD std::uint32_t index_word(const Picks& picks, const PickUnits::Unit& unit, index_t word) {
  std::uint32_t bits = 0;
  if (!Positions::is_bitmap(unit.among, unit.k)) {
    const index_t each = Positions::list_at(nullptr, unit.among).bits;
    for (index_t e = 32 * word / each; e < unit.k && each * e < 32 * word + 32; ++e) {
      const index_t shift = each * e - 32 * word;
      bits |= shift < 0 ? picks(unit, e) >> -shift : picks(unit, e) << shift;
    }
    return bits;
  }
  index_t e = 0;
  for (index_t left = unit.k; left > 0;) {
    const index_t half = left / 2;
    const bool before = picks(unit, e + half) / 32 < word;
    if (before) e += half + 1;
    left = before ? left - half - 1 : half;
  }
  for (; e < unit.k && picks(unit, e) / 32 == word; ++e) bits |= 1U << picks(unit, e) % 32;
  return bits;
}

/// Writer of picks as fp32, which commits each to the error feedback at once.
template <class Feedback>
struct PutFloats {
  using Coder = PickCoder<Dense>;
  Feedback feedback;

  TERSE_HD static index_t items(index_t k) { return Coder::bytes(k) / 4; }
  TERSE_HD void enter(const Piece& piece) { terse::enter(feedback, piece); }
  TERSE_HD void put(const PickUnits::Unit& unit, index_t e, std::uint32_t position, float value,
                    std::byte* values) const {
    reinterpret_cast<float*>(values)[e] = value;
    const index_t i = unit.piece.offset + position;
    feedback.commit(i, true, feedback.load(i), value);
  }
  /// Writes padding after the last pick.
  TERSE_HD void pad(index_t e, std::byte* values) const { reinterpret_cast<float*>(values)[e] = 0; }
};

/// Writer of a unit's section, whose values are written by `Put`.
template <class Selection, class Put>
struct WriteSection {
  using Coder = typename Put::Coder;
  Selection selection;
  Put put_;
  std::byte* base;
  StepDraw shared;

  static index_t items(const Selection& selection, index_t n, index_t k) {
    return std::max({index_t{1}, Put::items(k), selection.index_bytes(n, k) / 4});
  }
  /// Writes every `step`-th item from `first` on.
  template <class Picks>
  TERSE_HD void operator()(const PickUnits::Unit& unit, const Picks& picks, index_t first, index_t end,
                           index_t step) const {
    const index_t n = unit.piece.count, k = unit.k;
    const index_t words = selection.index_bytes(n, k) / 4, items = Put::items(k);
    Put put = put_;
    put.enter(unit.piece);
    std::byte* const values = base + unit.values_at;
    auto* const index = reinterpret_cast<std::uint32_t*>(base + unit.positions_at);
    if (Selection::variable && first == 0) store_aligned(base + unit.positions_at - 8, k);
    for (index_t e = first; e < end && (e < words || e < items); e += step) {
      if (e < words) index[e] = index_word(picks, unit, e);
      if (e < k) {
        const std::uint32_t place = picks(unit, e);
        float value = unit.values[place];
        if constexpr (Traits<Selection>::single_stage) value *= Selection::factor(n, k, e);
        put.put(unit, e, element_at<Selection>(unit, place, shared), value, values);
      } else if (e < items) {
        put.pad(e, values);
      }
    }
  }
};

/// Kernel that gathers the values of each unit's drawn elements, adjacent, at the place of the unit's first block.
template <class Selection>
struct GatherDrawnKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  PickUnits units;
  StepDraw shared;
  float* drawn;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::places, block.index())];
    const index_t begin = (block.index() - unit.first[PickUnits::places]) * placed_together;
    float* const to = drawn + unit.first[PickUnits::places] * placed_together;
    for (index_t e = begin + block.thread(); e < begin + placed_together && e < unit.among;
         e += block_threads)
      to[e] = unit.values[element_at<Selection>(unit, static_cast<std::uint32_t>(e), shared)];
  }
};

template <class Write, class Picks>
struct WritePicksKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  PickUnits units;
  Write write;
  Picks picks;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr index_t some = PickUnits::per_block(PickUnits::items);
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::items, block.index())];
    const index_t begin = (block.index() - unit.first[PickUnits::items]) * some;
    write(unit, picks, begin + block.thread(), begin + some, block_threads);
  }
};

TERSE_NUMERICS_END

/// Selector of picks from many units.
template <GridExecutor E>
class UnitPicker {
 public:
  UnitPicker() = default;
  /// Allocates memory for parts of units with n candidates in total (all elements or drawn ones) and up to `picks` picks.
  UnitPicker(index_t n, index_t picks, bool drawn)
      : zeros_(PickMemory::zeros(PickUnits::capacity)),
        counts_(PickMemory::counts(PickUnits::capacity, blocks_for(n, placed_together) + PickUnits::capacity),
                unwritten),
        positions_(picks + PickUnits::capacity, unwritten),
        drawn_(drawn ? (blocks_for(n, placed_together) + PickUnits::capacity) * placed_together : 0,
               unwritten) {}

  const std::uint32_t* positions() const { return positions_.data(); }

  /// Gathers the drawn elements of the units, which become their candidates.
  template <class Selection>
  void gather(E ex, PickUnits& units, const StepDraw& shared) {
    ex.launch(GatherDrawnKernel<Selection>{units, shared, drawn_.data()}, units.blocks[PickUnits::places]);
    for (int u = 0; u < units.count; ++u)
      units.units[u].values = drawn_.data() + units.units[u].first[PickUnits::places] * placed_together;
  }
  /// Selects the k elements of largest magnitude of each unit.
  void select_largest(E ex, const PickUnits& units) { place_largest(ex, units, memory(), positions_.data()); }
  /// Selects the elements that reach the units' thresholds, or the k largest if these are too many. Stores their number
  /// in the units.
  void select_above(E ex, PickUnits& units) {
    place_picks(ex, units, PicksByMagnitude{memory().cuts}, memory(), positions_.data());
    std::uint64_t totals[PickUnits::capacity];
    fetch(ex, in<E, std::uint64_t>(counts_.all().part(0, units.count)),
          view<std::uint64_t>(totals, units.count));
    bool full = false;
    for (int u = 0; u < units.count; ++u) {
      PickUnits::Unit& unit = units.units[u];
      // There may be more, and the lowest positions must not crowd out the others forever.
      if (picks_in(totals[u]) >= unit.k) {
        unit.least = PickUnits::by_rank;
        full = true;
      } else {
        unit.k = picks_in(totals[u]);
      }
    }
    if (full) select_largest(ex, units);
  }

 private:
  PickMemory memory() { return {zeros_.data(), counts_.data(), PickUnits::capacity}; }

  buffer<std::uint32_t, typename E::memory> zeros_;
  buffer<std::uint64_t, typename E::memory> counts_;  // totals first
  buffer<std::uint32_t, typename E::memory> positions_;
  buffer<float, typename E::memory> drawn_;
};

/// Picks from `chunks` of the message that `feedback` holds, and writes each section to `base` plus its chunk's
/// `going`. Then calls code(units) for some units at a time, and told(c, bytes) for each chunk when it is complete.
template <class UnitsOf, GridExecutor E, class Selection, class Put, class Feedback, class Code, class Told>
void write_picks(E ex, UnitPicker<E>& picker, const Selection& selection, PlacedRanges chunks, const Put& put,
                 Feedback feedback, const EncodeContext& context, std::byte* base, Code code, Told told) {
  using Write = WriteSection<Selection, Put>;
  const Write write{selection, put, base, context.shared};
  PickUnits units;
  index_t at = 0;  // bytes of the current section so far
  std::size_t first_chunk = 0;
  const auto flush = [&] {
    if (units.count == 0) return;
    if constexpr (PicksAmongDrawn<Selection>) picker.template gather<Selection>(ex, units, context.shared);
    if constexpr (PicksByRank<Selection> || PicksAmongDrawn<Selection>) picker.select_largest(ex, units);
    if constexpr (PicksByThreshold<Selection>) picker.select_above(ex, units);
    index_t blocks = 0;
    for (int u = 0; u < units.count; ++u) {
      PickUnits::Unit& unit = units.units[u];
      for (; first_chunk < static_cast<std::size_t>(unit.packet); at = 0)
        told(static_cast<int>(first_chunk++), at);
      const index_t n = unit.piece.count, going = chunks[first_chunk].going;
      unit.positions_at = going + at + (Selection::variable ? 8 : 0);
      unit.values_at = unit.positions_at + selection.index_bytes(n, unit.k);
      at = unit.values_at + Put::Coder::bytes(unit.k) - going;
      unit.first[PickUnits::items] = blocks;
      blocks += blocks_for(Write::items(selection, n, unit.k), PickUnits::per_block(PickUnits::items));
    }
    units.blocks[PickUnits::items] = blocks;
    if constexpr (PicksByDraw<Selection>) {
      using Drawn = DrawnPicks<Selection>;
      ex.launch(WritePicksKernel<Write, Drawn>{units, write, {context.shared}}, blocks);
    } else {
      ex.launch(WritePicksKernel<Write, ListedPicks>{units, write, {picker.positions()}}, blocks);
    }
    code(static_cast<const PickUnits&>(units));
    units = {};
  };
  for (std::size_t c = 0; c < chunks.size(); ++c)
    for (UnitsOf all(*chunks[c].range); all.more(); all.next()) {
      PickUnits::Unit unit;
      unit.piece = all.unit();
      unit.packet = static_cast<int>(c);
      unit.among = picked_from(selection, unit.piece.count);
      unit.values = feedback.at(unit.piece.offset);
      unit.k = selection.most(unit.piece.count);
      if constexpr (PicksByRank<Selection>) unit.k = selection.largest(unit.piece.count, context.step);
      if constexpr (PicksAmongDrawn<Selection>)
        unit.k = selection.largest_among_drawn(unit.piece.count, context.step);
      if constexpr (PicksByThreshold<Selection>) unit.least = magnitude_word(selection.least());
      units.add(unit, 0);
      if (units.count == PickUnits::capacity) flush();
    }
  flush();
  for (; first_chunk < chunks.size(); at = 0) told(static_cast<int>(first_chunk++), at);
}

}  // namespace terse::detail
