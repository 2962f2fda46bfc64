// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/device/compressor/picks.hpp"

// The values of many units' picks on a grid executor, coded by the verbs that code messages: the picks of each unit are
// a separate message, with arena indices from the unit's first element on.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Writer that sets the values of picks aside for coding, with their positions.
template <class Values>
struct PutAside {
  using Coder = PickCoder<Values>;
  float* picked;  // for the arena indices from `begin` on
  index_t begin;
  std::uint32_t* positions;

  TERSE_HD static index_t items(index_t k) { return k; }
  TERSE_HD void enter(const Piece&) {}
  TERSE_HD void put(const PickUnits::Unit& unit, index_t e, std::uint32_t position, float value,
                    std::byte*) const {
    picked[unit.piece.offset + e - begin] = value;
    positions[unit.first_pick + e] = position;
  }
  TERSE_HD void pad(index_t, std::byte*) const {}
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
  /// Units of a unit's picks as a separate message, where Whole means all of its picks.
  static constexpr Units units_of_it{Values::units().size, false};

 public:
  UnitCoder() = default;
  /// Allocates for parts of units with up to `picks` picks altogether.
  explicit UnitCoder(index_t picks)
      : positions_(most(picks), unwritten),
        scales_(scales(most(picks)), unwritten),
        scratch_((Statistic::width + 2) * (scales(most(picks)) + blocks_for(most(picks), reduction_block)) +
                     Statistic::width + 3,
                 unwritten),
        ignored_(1) {}

  PutAside<Values> put_aside(view<float, typename E::memory> picked, index_t begin) {
    return {picked.data(), begin, positions_.data()};
  }
  /// Codes the values that were set aside, and commits them.
  template <class Feedback>
  void code(E ex, const PickUnits& units, const PutAside<Values>& aside, Feedback feedback,
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
  /// Returns the room that `picks` picks require: each part of a unit may have a pick more than its share.
  static index_t most(index_t picks) { return picks + PickUnits::capacity; }
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
