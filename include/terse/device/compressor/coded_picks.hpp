// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/sparse_functors.hpp"
#include "terse/device/verbs/pack.hpp"
#include "terse/device/verbs/reduce.hpp"
#include "terse/device/verbs/select_units.hpp"

// The values of many units' picks on a grid executor, coded by the verbs that code messages. The picks of each unit are
// a separate message, with arena indices from the unit's first element on.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The values of picks to be coded, and their positions.
struct PicksAside {
  float* picked;  // for the arena indices from `begin` on
  index_t begin;
  std::uint32_t* positions;
};
/// Coder of values that are sent as fp32.
struct NoCoder {
  explicit NoCoder(index_t) {}
  static std::uint32_t* positions() { return nullptr; }
};

/// Kernel that runs CommitPicks for many units.
template <class Coder, class Feedback>
struct CommitUnitsKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  PickUnits units;
  Feedback feedback;
  const std::uint32_t* positions;
  const std::byte* base;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr index_t some = PickUnits::per_block(PickUnits::items);
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::items, block.index())];
    const index_t begin = (block.index() - unit.first[PickUnits::items]) * some;
    const CommitPicks<Coder, Feedback> commit{feedback, positions + unit.first_pick, unit.piece, unit.k,
                                              base + unit.values_at};
    for (index_t e = begin + block.thread(); e < begin + some && e < unit.k; e += block_threads) commit(e);
  }
};

TERSE_NUMERICS_END

/// Coder of the picks of many units.
template <GridExecutor E, class Values>
class UnitCoder {
  using Quantizer = typename Values::Quantizer;
  using Statistic = typename Values::Statistic;
  using Scale = typename Values::Scale;
  /// Units of a unit's picks as a separate message, in which Whole means all of its picks.
  static constexpr Units units_of_it{Values::units().size, false};

 public:
  /// Allocates memory for parts of units with up to `picks` picks in total.
  explicit UnitCoder(index_t picks)
      : positions_(picks, uninitialized),
        scales_(scales(picks), uninitialized),
        scratch_((Statistic::width + 2) * (scales(picks) + blocks_for(picks, reduction_block)) +
                     Statistic::width + 3,
                 uninitialized),
        ignored_(1) {}

  std::uint32_t* positions() { return positions_.data(); }
  /// Codes the stored values and commits them.
  template <class Feedback>
  void code(E ex, const PickUnits& units, const PicksAside& aside, Feedback feedback,
            const EncodeContext& context, std::byte* base) {
    std::array<Piece, PickUnits::capacity> pieces;
    std::array<PlacedRange, PickUnits::capacity> placed;
    std::size_t count = 0;
    index_t first_unit = 0;
    for (int u = 0; u < units.count; ++u) {
      const PickUnits::Unit& unit = units.units[u];
      if (unit.k == 0) continue;
      pieces[count] = {0, unit.piece.offset, unit.k};
      each_[count].assign(pieces[count]);
      placed[count] = Values{}.place(each_[count], 0, unit.values_at);
      placed[count].first_unit = first_unit;
      first_unit += units_of_it.in_piece(unit.k);
      ++count;
    }
    if (count == 0) return;
    all_.assign(pieces.data(), count);
    const PickedValues values{aside.picked, aside.begin};
    const Mask<typename E::memory> everything;
    if constexpr (!std::is_empty_v<Scale>)
      reduce<Statistic>(ex, all_, units_of_it, everything, NoPackets{}, values, scratch_.all(), scales_.all(),
                        ignored_.data());
    pack<Quantizer::bits, Quantizer::stochastic>(ex, PlacedRanges(placed.data(), count), units_of_it,
                                                 everything, Quantize<Quantizer, PickedValues>{values},
                                                 in<E, Scale>(scales_.all()), base, context.local);
    ex.launch(CommitUnitsKernel<PickCoder<Values>, Feedback>{units, feedback, aside.positions, base},
              units.blocks[PickUnits::items]);
  }

 private:
  static index_t scales(index_t picks) {
    constexpr index_t size = units_of_it.size;
    return (size > 0 ? picks / size : 0) + PickUnits::capacity;
  }

  buffer<std::uint32_t, typename E::memory> positions_;
  buffer<Scale, typename E::memory> scales_;
  buffer<float, typename E::memory> scratch_;
  buffer<std::uint32_t, typename E::memory> ignored_;  // picks are finite
  std::array<Range, PickUnits::capacity> each_;
  Range all_;
};

}  // namespace terse::detail
