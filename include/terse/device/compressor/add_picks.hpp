// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/arrived_picks.hpp"
#include "terse/device/compressor/cosines.hpp"
#include "terse/device/verbs/last_block.hpp"

// Sums of received sections of sparse compressors on a grid executor, in shared memory: of 4096 elements of a piece, or
// of a tile in any basis.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Returns the bits of a thread's elements of a tile; each thread has 16 adjacent elements, in order.
template <class Block>
TERSE_HD std::uint32_t bits_of_thread(const Block& block, const std::byte* bitmap, index_t first,
                                      index_t end) {
  static_assert(placed_together / block_threads == 16);
  const index_t at = first + index_t{16} * block.thread();
  return at < end ? load_from_wire<std::uint16_t>(bitmap + at / 8) : 0;
}

/// Kernel that counts the entries before each block's elements, in bitmaps of several blocks, packet by packet.
template <class Sections>
struct CountEntriesKernel {
  static constexpr bool cooperative = true;
  using Units = SentUnits<Sections>;
  struct Shared {
    bool last;
  };
  Units units;
  PickedPackets packets;
  std::uint64_t* before;  // each packet's blocks
  EntryCounters counters;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t all = units.blocks[Units::elements];
    const SentUnit unit = units.part(Units::elements, block.index() % all);
    const int p = unit.packet < 0 ? static_cast<int>(block.index() / all) : unit.packet;
    const index_t n = unit.among, tiles = blocks_for(n, placed_together);
    const Arrived positions = packets.positions(p, unit);
    if (tiles == 1 || unit.block >= tiles || !Positions::is_bitmap(n, positions.picks)) return;
    const auto own = static_cast<std::uint32_t>(
        ones_in(bits_of_thread(block, positions.base, unit.block * placed_together, n)));
    const std::uint64_t set = block.sum(own);
    if (block.thread() == 0) before[block.index()] = set;
    if (is_last_block(block, shared.last, counters.blocks(p, unit.entry), tiles))
      sum_before(block, before + (block.index() - unit.block), tiles);
  }
};

/// Kernel that adds the packets' values to sums, one packet after the other, and transforms the sums to elements. Each
/// position occurs once in valid sections; invalid ones write only within the block's elements.
template <class Basis, class Sections>
struct AddUnitsKernel {
  static constexpr bool cooperative = true;
  using Units = SentUnits<Sections>;
  using Selection = decltype(Sections::selection);
  using Coder = typename Sections::Coder;
  using Shape = TileTransform<Basis, Units::side>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
    index_t starts[most_packets];  // of the block's entries in lists
  };
  Units units;
  PickedPackets packets;
  const std::uint64_t* before;  // see CountEntriesKernel
  StepDraw shared_draw;
  CosineTables tables;
  float* sums;
  index_t begin;  // arena index of the first sum
  bool more;      // adds to the numbers that are in the elements' places
  bool last;      // transforms to elements; otherwise numbers stay

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const SentUnit unit = units.part(Units::elements, block.index());
    const Shape shape(unit.place, tables);
    if (shape.count() == 0) return;
    float *x = shared.one, *spare = shared.other;
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      x[shape.number(e)] = more ? sums[shape.index(e) - begin] : 0.0F;
    const int from = unit.packet < 0 ? 0 : unit.packet, behind = unit.packet < 0 ? packets.count : from + 1;
    const index_t first = Units::side > 0 ? 0 : unit.block * placed_together;
    const Span span = places_of(unit, first, shape.count());
    if constexpr (!PicksByDraw<Selection>)
      for (int p = from + block.thread() / 32; p < behind; p += block_threads / 32) {
        const index_t start = entries_before(block, packets.positions(p, unit), unit.among, span.begin);
        if (block.thread() % 32 == 0) shared.starts[p - from] = start;
      }
    block.sync();
    for (int p = from; p < behind; ++p) {
      const Adding adding{shape,
                          x,
                          static_cast<std::uint32_t>(first),
                          static_cast<std::uint32_t>(shape.count()),
                          packets.packets[p].weight,
                          packets.values(p, unit)};
      if constexpr (PicksByDraw<Selection>) {
        for (index_t e = span.begin + block.thread(); e < span.end; e += block_threads)
          adding(Selection::drawn(unit.n, adding.values.picks, unit.begin, e, shared_draw), e);
      } else {
        const Arrived positions = packets.positions(p, unit);
        const auto add = [&](std::uint32_t place, index_t e) {
          adding(element_at<Selection>(unit.n, unit.among, unit.begin, place, shared_draw), e);
        };
        if (Positions::is_bitmap(unit.among, positions.picks)) {
          const index_t row = unit.packet < 0 ? p * units.blocks[Units::elements] : 0;
          const index_t some = span.begin / placed_together;
          const std::uint64_t* entries = before + row + (block.index() - unit.block) + some;
          for (index_t at = some * placed_together; at < span.end; at += placed_together, ++entries)
            add_bits(block, positions, unit.among, at, unit.among <= placed_together ? 0 : *entries, add);
        } else {
          const Positions::List list = Positions::list_at(positions.base, unit.among);
          for (index_t e = shared.starts[p - from] + block.thread(); e < positions.picks;
               e += block_threads) {
            const std::uint32_t place = list[e];
            if (place >= span.end) break;
            add(place, e);
          }
        }
      }
      block.sync();
    }
    if (last) shape.inverse(block, x, spare);
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      sums[shape.index(e) - begin] = x[last ? shape.element(e) : shape.number(e)];
  }

 private:
  struct Adding {
    const Shape& shape;
    float* x;
    std::uint32_t first, size;
    float weight;
    Arrived values;
    TERSE_HD void operator()(std::uint32_t position, index_t e) const {
      const std::uint32_t at = position - first;  // wraps to a large number if it is below
      if (at < size)
        x[shape.number(static_cast<int>(at))] += weight * Coder::read(values.base, values.picks, e);
    }
  };
  struct Span {
    index_t begin, end;
  };
  /// Returns the places that elements [first, first + size) may have among the unit's candidates. Drawn candidate e
  /// lies in stratum e, up to one place at its edges.
  TERSE_HD static Span places_of(const SentUnit& unit, index_t first, index_t size) {
    if constexpr (!PicksByDraw<Selection> && !PicksAmongDrawn<Selection>) return {first, first + size};
    const index_t n = unit.n, all = PicksByDraw<Selection> ? unit.k : unit.among;
    const index_t here = first * all / n, last = (first + size) * all / n + 2;
    return {here > 0 ? here - 1 : 0, last < all ? last : all};
  }
  /// Returns the number of a list's entries before a position, or 0 for bitmaps. A warp computes it and tests 32
  /// entries at a time.
  template <class Block>
  TERSE_HD static index_t entries_before(Block& block, const Arrived& positions, index_t n,
                                         index_t position) {
    const Positions::List list = Positions::list_at(positions.base, n);
    index_t before = 0, left = positions.picks;
    if (position == 0 || Positions::is_bitmap(n, positions.picks)) left = 0;
    while (left > 0) {
      const index_t part = (left + 31) / 32, last = (block.thread() % 32 + 1) * part - 1;
      const int parts = ones_in(block.ballot(last < left && list[before + last] < position));
      before += parts * part;
      left = left - parts * part < part ? left - parts * part : part - 1;
    }
    return before;
  }
  /// Adds the entries of a bitmap for one block's places from `first` on. `start` entries precede them.
  template <class Block, class Add>
  TERSE_HD static void add_bits(Block& block, const Arrived& positions, index_t n, index_t first,
                                std::uint64_t start, const Add& add) {
    std::uint32_t bits = bits_of_thread(block, positions.base, first, n), all = 0;
    const auto at = static_cast<std::uint32_t>(first + 16 * block.thread());
    std::uint32_t e = static_cast<std::uint32_t>(start) +
                      block.exclusive_sum(static_cast<std::uint32_t>(ones_in(bits)), all);
    for (; bits != 0; bits &= bits - 1, ++e)
      if (e < positions.picks) add(at + static_cast<std::uint32_t>(first_one_in(bits)), e);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
