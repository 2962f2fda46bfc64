// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/device/compressor/coded_picks.hpp"
#include "terse/device/compressor/units.hpp"

// The encoder of units of any size on a grid executor, for picks of TopK, Threshold and RandomK with any coder. The
// same kernels encode several packets. Several blocks of threads process a large unit. Small ones: top_picks.hpp.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Kernel that gathers the values of each unit's drawn elements, adjacent to each other, at the place of the unit's
/// first block.
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
      to[e] = unit.values[element_at<Selection>(unit.piece.count, unit.among, unit.piece.offset,
                                                static_cast<std::uint32_t>(e), shared)];
  }
};

/// Kernel that writes the sections of units whose picks are listed or drawn. It commits picks as fp32 to the error
/// feedback at once, and stores others for their coder.
template <class Sections, class Feedback>
struct WritePicksKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  using Selection = decltype(Sections::selection);
  using Coder = typename Sections::Coder;
  static constexpr bool codes = !Sections::lossless;
  PickUnits units;
  Sections sections;
  const std::uint32_t* positions;  // unless drawn
  Feedback feedback;
  PicksAside aside;
  std::byte* base;
  StepDraw shared;

  /// Returns the number of words that are written, of positions and of values.
  static index_t items(const Sections& sections, index_t n, index_t k) {
    return std::max({index_t{1}, values_of(k), sections.selection.index_bytes(n, k) / 4});
  }

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr index_t some = PickUnits::per_block(PickUnits::items);
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::items, block.index())];
    const index_t n = unit.piece.count, k = unit.k, key = unit.piece.offset;
    const index_t words = sections.selection.index_bytes(n, k) / 4, items = values_of(k);
    const index_t first = (block.index() - unit.first[PickUnits::items]) * some, end = first + some;
    Feedback view = feedback;
    enter(view, unit.piece);
    auto* const values = reinterpret_cast<float*>(base + unit.values_at);
    auto* const index = reinterpret_cast<std::uint32_t*>(base + unit.positions_at);
    if (Sections::variable && first == 0 && block.thread() == 0)
      store_aligned(base + unit.positions_at - 8, k);
    for (index_t e = first + block.thread(); e < end && (e < words || e < items); e += block_threads) {
      if (e < words) index[e] = index_word(unit, e);
      if (e < k) {
        const std::uint32_t place = pick(unit, e);
        const std::uint32_t position = element_at<Selection>(n, unit.among, key, place, shared);
        float value = unit.values[place];
        if constexpr (Traits<Selection>::single_stage) value *= Selection::factor(n, k, e);
        if constexpr (codes) {
          aside.picked[key + e - aside.begin] = value;
          aside.positions[unit.first_pick + e] = position;
        } else {
          values[e] = value;
          view.commit(key + position, true, view.load(key + position), value);
        }
      } else if (!codes && e < items) {
        values[e] = 0;  // padding
      }
    }
  }

 private:
  TERSE_HD static index_t values_of(index_t k) { return codes ? k : Coder::bytes(k) / 4; }
  /// Returns the place of pick e among the unit's candidates.
  TERSE_HD std::uint32_t pick(const PickUnits::Unit& unit, index_t e) const {
    if constexpr (PicksByDraw<Selection>)
      return Selection::drawn(unit.piece.count, unit.k, unit.piece.offset, e, shared);
    return positions[unit.first_pick + e];
  }
  /// Returns 32 bits of the part of a section that contains the positions, see Positions.
  TERSE_HD std::uint32_t index_word(const PickUnits::Unit& unit, index_t word) const {
    std::uint32_t bits = 0;
    if (!Positions::is_bitmap(unit.among, unit.k)) {
      const index_t each = Positions::list_at(nullptr, unit.among).bits;
      for (index_t e = 32 * word / each; e < unit.k && each * e < 32 * word + 32; ++e) {
        const index_t shift = each * e - 32 * word;
        bits |= shift < 0 ? pick(unit, e) >> -shift : pick(unit, e) << shift;
      }
      return bits;
    }
    index_t e = 0;
    for (index_t left = unit.k; left > 0;) {
      const index_t half = left / 2;
      const bool before = pick(unit, e + half) / 32 < word;
      if (before) e += half + 1;
      left = before ? left - half - 1 : half;
    }
    for (; e < unit.k && pick(unit, e) / 32 == word; ++e) bits |= 1U << pick(unit, e) % 32;
    return bits;
  }
};

TERSE_NUMERICS_END

/// Encoder of picks from many units of any sizes.
template <GridExecutor E, class Sections, class Values>
class UnitPicker {
  using Selection = decltype(Sections::selection);
  using Coder = std::conditional_t<Values::lossless, NoCoder, UnitCoder<E, Values>>;

 public:
  /// Allocates memory for parts of units with n candidates in total (all elements or drawn ones) and up to `picks`
  /// picks.
  UnitPicker(index_t n, index_t picks)
      : zeros_(PickMemory::zeros(PickUnits::capacity)),
        counts_(PickMemory::counts(PickUnits::capacity, blocks_for(n, placed_together) + PickUnits::capacity),
                uninitialized),
        positions_(picks + PickUnits::capacity, uninitialized),
        drawn_(PicksAmongDrawn<Selection>
                   ? (blocks_for(n, placed_together) + PickUnits::capacity) * placed_together
                   : 0,
               uninitialized),
        coder_(picks + PickUnits::capacity) {}

  /// Picks from `ranges` of the message that `feedback` holds, and writes each section to `base` plus its range's
  /// `going`. Values that are coded later are stored in `room`, for the arena indices from `begin` on. Calls told(c,
  /// bytes) for each range when it is complete.
  template <class Feedback, class Told>
  void operator()(E ex, const Sections& sections, PlacedRanges ranges, Feedback feedback,
                  view<float, typename E::memory> room, index_t begin, const EncodeContext& context,
                  std::byte* base, const Told& told) {
    using Kernel = WritePicksKernel<Sections, Feedback>;
    const Selection& selection = sections.selection;
    const PicksAside aside{room.data(), begin, coder_.positions()};
    PickUnits units;
    index_t at = 0;  // bytes of the current section so far
    std::size_t first_range = 0;
    const auto flush = [&] {
      if (units.count == 0) return;
      if constexpr (PicksAmongDrawn<Selection>) gather(ex, units, context.shared);
      if constexpr (PicksByRank<Selection> || PicksAmongDrawn<Selection>) select_largest(ex, units);
      if constexpr (PicksByThreshold<Selection>) select_above(ex, units);
      for (int u = 0; u < units.count; ++u) {
        PickUnits::Unit& unit = units.units[u];
        for (; first_range < static_cast<std::size_t>(unit.packet); at = 0)
          told(static_cast<int>(first_range++), at);
        const index_t n = unit.piece.count;
        unit.positions_at = ranges[first_range].going + at + (Sections::variable ? 8 : 0);
        unit.values_at = unit.positions_at + selection.index_bytes(n, unit.k);
        at += sections.bytes(n, unit.k);
        units.add_items(unit, Kernel::items(sections, n, unit.k));
      }
      ex.launch(Kernel{units, sections, positions_.data(), feedback, aside, base, context.shared},
                units.blocks[PickUnits::items]);
      if constexpr (!Values::lossless) coder_.code(ex, units, aside, feedback, context, base);
      units = {};
    };
    for (std::size_t r = 0; r < ranges.size(); ++r)
      for (typename Sections::UnitsOf all(*ranges[r].range); all.more(); all.next()) {
        PickUnits::Unit unit;
        unit.piece = all.unit();
        unit.packet = static_cast<int>(r);
        unit.among = picked_from(selection, unit.piece.count);
        unit.values = feedback.at(unit.piece.offset);
        unit.k = selection.most(unit.piece.count);
        if constexpr (PicksByRank<Selection>) unit.k = selection.largest(unit.piece.count, context.step);
        if constexpr (PicksAmongDrawn<Selection>)
          unit.k = selection.largest_among_drawn(unit.piece.count, context.step);
        if constexpr (PicksByThreshold<Selection>) unit.least = magnitude_word(selection.least());
        units.add(unit);
        if (units.count == PickUnits::capacity) flush();
      }
    flush();
    for (; first_range < ranges.size(); at = 0) told(static_cast<int>(first_range++), at);
  }

 private:
  /// Gathers the drawn elements of the units, which become their candidates.
  void gather(E ex, PickUnits& units, const StepDraw& shared) {
    ex.launch(GatherDrawnKernel<Selection>{units, shared, drawn_.data()}, units.blocks[PickUnits::places]);
    for (int u = 0; u < units.count; ++u)
      units.units[u].values = drawn_.data() + units.units[u].first[PickUnits::places] * placed_together;
  }
  /// Selects the k elements of largest magnitude of each unit.
  void select_largest(E ex, const PickUnits& units) { place_largest(ex, units, memory(), positions_.data()); }
  /// Selects the elements that reach the units' thresholds, or the k largest if too many do. Stores the number of picks
  /// in the units.
  void select_above(E ex, PickUnits& units) {
    place_picks(ex, units, PicksByMagnitude{memory().cuts}, memory(), positions_.data());
    std::uint64_t totals[PickUnits::capacity];
    fetch(ex, in<E, std::uint64_t>(counts_.all().part(0, units.count)),
          view<std::uint64_t>(totals, units.count));
    bool full = false;
    for (int u = 0; u < units.count; ++u) {
      PickUnits::Unit& unit = units.units[u];
      // There may be more, and the lowest positions must not exclude the others forever.
      if (picks_in(totals[u]) >= unit.k) {
        unit.least = PickUnits::by_rank;
        full = true;
      } else {
        unit.k = picks_in(totals[u]);
      }
    }
    if (full) select_largest(ex, units);
  }

  PickMemory memory() { return {zeros_.data(), counts_.data(), PickUnits::capacity}; }

  buffer<std::uint32_t, typename E::memory> zeros_;
  buffer<std::uint64_t, typename E::memory> counts_;  // totals first
  buffer<std::uint32_t, typename E::memory> positions_;
  buffer<float, typename E::memory> drawn_;
  Coder coder_;
};

}  // namespace terse::detail
