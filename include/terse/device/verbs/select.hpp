// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "terse/device/verbs/select_units.hpp"

// Selection by magnitude on a grid, in one span.

namespace terse {
namespace detail {

/// Kernel of select_top in one block, with all memory except the values in shared memory.
struct SelectFewKernel {
  static constexpr bool cooperative = true;
  /// Counters, which may share memory with positions, since they are unused when positions are written.
  using Counters = DigitCounts;
  struct Rest {
    GridCut cut;
    PickedTile picks;
  };
  struct Shared : Rest {
    Counters counters;
  };
  const float* values;
  index_t count;
  std::uint32_t k;
  std::uint32_t* positions;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    (*this)(block, shared, shared.counters);
  }
  template <class Block>
  TERSE_HD void operator()(Block& block, Rest& shared, Counters& counters) const {
    if (block.thread() == 0) shared.cut = {0, k};
    clear(block, counters);
    TERSE_ROLLED
    for (int shift = 20; shift >= 0; shift -= 10) {
      count_digits(block, counters, values, count, 0, shared.cut.magnitude, shift);
      find_digit(block, counters.of, shift, shared.cut);
    }
    place_tile(block, shared.picks, PickFromCut{values, shared.cut}, count, 0, 0, positions, k);
  }
};

/// A span as a single unit, and the scratch of its selection.
template <GridExecutor E>
struct OneUnit {
  PickUnits units;
  PickMemory memory;

  OneUnit(const float* values, index_t count, index_t k, float* scratch)
      : memory(reinterpret_cast<std::uint32_t*>(scratch + 2 * counts(count)),
               reinterpret_cast<std::uint64_t*>(scratch), 1) {
    PickUnits::Unit unit;
    unit.piece = {0, 0, count};
    unit.among = count;
    unit.values = values;
    unit.k = k;
    units.add(unit);
  }
  static index_t counts(index_t count) { return PickMemory::counts(1, blocks_for(count, placed_together)); }
  /// Zeroes the histograms: scratch is not kept zero between selections.
  void clear(E ex) const {
    if (!units.all_are_small())
      fill(ex, view<std::uint32_t, typename E::memory>(memory.histograms, PickMemory::zeros(1)), 0);
  }
};

}  // namespace detail

/// Returns the floats of scratch that `select_top`, `select_above` and `list_picks` require for spans of up to `count`
/// elements. Scratch begins at a multiple of 8 bytes.
template <GridExecutor E>
index_t select_scratch(E, index_t count, index_t) {
  return 2 * detail::OneUnit<E>::counts(count) + detail::PickMemory::zeros(1);
}

/// Selects as the host's verb does, in five passes, or in one launch for up to 4096 elements; the host doesn't wait.
template <GridExecutor E>
void select_top(E ex, view<const float, typename E::memory> values, index_t k,
                view<float, typename E::memory> floats, view<std::uint32_t, typename E::memory> positions) {
  if (k == 0) return;
  const index_t count = values.size();
  if (count <= detail::placed_together) {
    ex.launch(detail::SelectFewKernel{values.data(), count, static_cast<std::uint32_t>(k), positions.data()},
              1);
    return;
  }
  const detail::OneUnit<E> one(values.data(), count, k, floats.data());
  one.clear(ex);
  detail::place_largest(ex, one.units, one.memory, positions.data());
}

/// Lists the ascending positions of the elements among `count` for which f returns true, at most positions.size(). f
/// may have `begin()`, which is called before.
template <GridExecutor E, class F>
void list_picks(E ex, F f, index_t count, view<float, typename E::memory> floats,
                view<std::uint32_t, typename E::memory> positions) {
  if (count == 0) return;
  const detail::OneUnit<E> one(nullptr, count, positions.size(), floats.data());
  one.clear(ex);
  detail::place_picks(ex, one.units, detail::PicksWhere<F>{f}, one.memory, positions.data());
}

/// Selects as the host's verb does, in two passes; the host waits for the number of picks.
template <GridExecutor E>
index_t select_above(E ex, view<const float, typename E::memory> values, float threshold,
                     view<float, typename E::memory> floats,
                     view<std::uint32_t, typename E::memory> positions) {
  if (positions.empty() || values.empty()) return 0;
  detail::OneUnit<E> one(values.data(), values.size(), positions.size(), floats.data());
  one.units.units[0].least = std::signbit(threshold) ? 0 : detail::magnitude_word(threshold);
  one.clear(ex);
  detail::place_picks(ex, one.units, detail::PicksByMagnitude{one.memory.cuts}, one.memory, positions.data());
  std::uint64_t found = 0;
  fetch(ex, in<E, std::uint64_t>(one.memory.totals, 1), view<std::uint64_t>(&found, 1));
  return std::min(detail::picks_in(found), positions.size());
}

}  // namespace terse
