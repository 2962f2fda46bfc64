// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/compressor/grid_arrived_picks.hpp"

// Sums of what sections of sparse compressors say that arrived on a grid executor, tile by tile in shared memory.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Where the entries of each tile begin in a packet's unit; of bitmaps, where there may be some, how many entries each tile has.
struct CountEntries {
  PickUnits units;
  PickedPackets packets;
  std::uint64_t* counts;
  bool bitmaps;

  TERSE_HD void operator()(index_t number) const {
    const index_t tiles = units.blocks[PickUnits::tiles], tile = number % tiles;
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::tiles, tile)];
    const Arrived positions =
        packets.positions(unit.packet < 0 ? static_cast<int>(number / tiles) : unit.packet, unit);
    const index_t begin = (tile - unit.first[PickUnits::tiles]) * placed_together, n = unit.piece.count;
    if (Positions::is_bitmap(n, positions.picks)) {
      const index_t all = aligned(n), end = begin + placed_together < all ? begin + placed_together : all;
      index_t set = 0;
      for (index_t i = begin; i < end; i += 64) set += ones_in(Positions::load(positions.base + i / 8));
      counts[number] = static_cast<std::uint64_t>(set);
    } else {
      const index_t before = entries_before(positions, n, begin);
      counts[number] = static_cast<std::uint64_t>(
          bitmaps ? entries_before(positions, n, begin + placed_together) - before : before);
    }
  }

 private:
  TERSE_HD static index_t entries_before(const Arrived& positions, index_t n, index_t position) {
    const Positions::List list = Positions::list_at(positions.base, n);
    index_t e = 0;
    for (index_t left = positions.picks; left > 0;) {
      const index_t half = left / 2;
      const bool before = list[e + half] < position;
      if (before) e += half + 1;
      left = before ? left - half - 1 : half;
    }
    return e;
  }
};

/// Adds the packets' values to sums, tile by tile, one packet after the other. Each position occurs once, in sections that are right;
/// what others say stays within the tile.
template <class Selection, class Coder>
struct AddUnitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    float sums[placed_together];
  };
  PickUnits units;
  PickedPackets packets;
  const std::uint64_t* starts;  // see CountEntries; sums of counts, or starts
  StepDraw shared_draw;
  float* sums;
  index_t begin;  // the arena index of the first sum
  bool more;      // to sums that are there

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int u = units.of_block(PickUnits::tiles, block.index());
    const PickUnits::Unit& unit = units.units[u];
    const index_t n = unit.piece.count, local = block.index() - unit.first[PickUnits::tiles];
    const index_t first = local * placed_together,
                  size = n - first < placed_together ? n - first : placed_together;
    float* const to = sums + (unit.piece.offset + first - begin);
    for (index_t i = block.thread(); i < size; i += block_threads) shared.sums[i] = more ? to[i] : 0.0F;
    block.sync();
    const int from = unit.packet < 0 ? 0 : unit.packet, behind = unit.packet < 0 ? packets.count : from + 1;
    for (int p = from; p < behind; ++p) {
      const Adding adding{shared.sums, first, size, packets.packets[p].weight, packets.values(p, unit)};
      if constexpr (PicksByDraw<Selection>) {
        // Entry e lies in stratum e, give or take its edges.
        const index_t k = adding.values.picks;
        const index_t before = first * k / n, last = (first + size) * k / n + 2;
        for (index_t e = (before > 0 ? before - 1 : 0) + block.thread(); e < k && e < last;
             e += block_threads)
          adding(Selection::drawn(n, k, unit.piece.offset, e, shared_draw), e);
      } else {
        const Arrived positions = packets.positions(p, unit);
        const std::uint64_t* const mine = starts +
                                          (unit.packet < 0 ? p : 0) * units.blocks[PickUnits::tiles] +
                                          unit.first[PickUnits::tiles];
        const auto start = static_cast<index_t>(mine[local] - mine[0]);
        if (Positions::is_bitmap(n, positions.picks))
          add_bits(block, adding, positions.base, start);
        else
          add_list(block, adding, positions, n, start,
                   first + size == n ? positions.picks : static_cast<index_t>(mine[local + 1] - mine[0]));
      }
      block.sync();
    }
    for (index_t i = block.thread(); i < size; i += block_threads) to[i] = shared.sums[i];
  }

 private:
  struct Adding {
    float* sums;
    index_t first, size;
    float weight;
    Arrived values;
    TERSE_HD void operator()(std::int64_t position, index_t e) const {
      if (position >= first && position < first + size)
        sums[position - first] += weight * Coder::read(values.base, values.picks, e);
    }
  };
  template <class Block>
  TERSE_HD static void add_list(const Block& block, const Adding& adding, const Arrived& positions, index_t n,
                                index_t start, index_t end) {
    const Positions::List list = Positions::list_at(positions.base, n);
    for (index_t e = (start > 0 ? start : 0) + block.thread(); e < end && e < positions.picks;
         e += block_threads)
      adding(list[e], e);
  }
  /// Each thread has some elements side by side.
  template <class Block>
  TERSE_HD static void add_bits(Block& block, const Adding& adding, const std::byte* bitmap, index_t start) {
    constexpr int own = static_cast<int>(placed_together / block_threads);
    static_assert(own == 16);
    const index_t at = adding.first + own * block.thread();
    std::uint32_t bits = 0, all = 0;
    if (at < adding.first + adding.size) bits = load_from_wire<std::uint16_t>(bitmap + at / 8);
    index_t e = start + block.exclusive_sum(static_cast<std::uint32_t>(ones_in(bits)), all);
    for (; bits != 0; bits &= bits - 1, ++e)
      if (e >= 0 && e < adding.values.picks) adding(at + first_one_in(bits), e);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
