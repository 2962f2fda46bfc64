// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/code_picks.hpp"
#include "terse/device/compressor/cosines.hpp"
#include "terse/device/compressor/picks.hpp"

// The largest of up to 4096 elements on a grid executor, with any coder, in one block of threads, with the same picks
// and bytes as on the host: of tiles, see top_tiles.hpp, and of units.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Some elements with n numbers, k of which are sent, and their places.
struct TopPicks {
  Piece piece;      // that contains the elements
  TilePlace place;  // of the elements
  index_t begin;    // arena index assigned to the first number
  index_t n, k;
  index_t section_at;  // of the positions; the values follow

  TERSE_HD bool is_bitmap() const { return Positions::is_bitmap(n, k); }
  TERSE_HD index_t values_at() const { return section_at + Positions::bytes(n, k); }
};

/// Units of a kernel, one per block. Variable: each section begins with the number of picks.
template <bool Variable>
struct SmallUnits {
  static constexpr bool variable = Variable;
  PickUnits units;

  TERSE_HD TopPicks operator()(index_t number) const {
    const PickUnits::Unit& unit = units.units[number];
    const index_t n = unit.piece.count;
    return {unit.piece, {unit.piece.offset, 1, n, n}, unit.piece.offset, n, unit.k, unit.positions_at};
  }
};

template <class Basis, int S, class Values>
struct TopPicksShared {
  /// A copy of a tile. The other copy has room for a selection's counters, and then for its positions.
  union Copy {
    float tile[TileTransform<Basis, S>::room];
    SelectFewKernel::Counters counters;
    std::uint32_t positions[std::size_t{S} * S];
  };
  Copy one, other;
  SelectFewKernel::Rest select;
  typename CodePicks<Values>::Shared code;
  std::uint32_t picked[std::size_t{blocks_for(S * S, 32)}];  // a bit per number
};

/// Kernel that encodes one tile or unit end to end in a single block: evaluates the message, picks from it in the
/// basis's coordinates, writes the picks, and commits the values that receivers will read. No two blocks share an
/// element.
template <class Basis, int S, class Values, class Work, class Space, class Incoming, class Message,
          class Feedback>
struct TopPicksKernel {
  static constexpr bool cooperative = true;
  using Shape = TileTransform<Basis, S>;
  using Shared = TopPicksShared<Basis, S, Values>;
  Work work;
  CosineTables tables;
  float limit;  // of numbers
  Mask<Space> mask;
  Incoming incoming;
  Materialize<Message> message;
  Feedback feedback;
  std::byte* section;
  StepDraw draw;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const TopPicks tile = work(block.index());
    const Shape shape(tile.place, tables);
    float *x = shared.one.tile, *spare = shared.other.tile;
    evaluate(block, tile.piece, shape, x);
    block.sync();
    shape.forward(block, x, spare);
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[e] = Shape::within(limit, x[shape.number(e)], message.bad);
      block.sync();
      swap_copies(x, spare);
    }
    auto& rest = spare == shared.other.tile ? shared.other : shared.one;
    SelectFewKernel{x, tile.n, static_cast<std::uint32_t>(tile.k), rest.positions}(block, shared.select,
                                                                                   rest.counters);
    write(block, tile, shared, rest.positions, x);
    block.sync();
    // Receivers read picks as they were coded, and zeros for the other numbers.
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[shape.number(e)] = read(shared, x, e);
      block.sync();
      swap_copies(x, spare);
      shape.inverse(block, x, spare);
    }
    Feedback view = feedback;
    enter(view, tile.piece);
    for (int e = block.thread(); e < shape.count(); e += block_threads) {
      const index_t i = shape.index(e);
      float decoded;
      if constexpr (Basis::transforms)
        decoded = x[shape.element(e)];
      else
        decoded = read(shared, x, e);
      view.commit(i, keeps(i), view.load(i), decoded);
    }
  }

 private:
  TERSE_HD static void swap_copies(float*& x, float*& spare) {
    float* const other = spare;
    spare = x;
    x = other;
  }
  TERSE_HD bool keeps(index_t i) const { return (mask.word(i) >> i % alignment & 1) != 0; }
  template <class Block>
  TERSE_HD void evaluate(const Block& block, const Piece& piece, const Shape& shape, float* x) const {
    Materialize<Message> f = message;
    enter(f, piece);
    const Tile whole{piece};
    for (int e = block.thread(); e < shape.count(); e += block_threads) {
      const index_t i = shape.index(e);
      incoming.call(f, whole, i - piece.offset, 0, keeps(i));
      x[shape.element(e)] = *feedback.at(i);
    }
  }
  /// Writes positions and values; in `x`, replaces values by those that receivers will read.
  template <class Block>
  TERSE_HD void write(Block& block, const TopPicks& tile, Shared& shared, const std::uint32_t* positions,
                      float* x) const {
    std::byte* const wire = section + tile.section_at;
    const index_t bytes = Positions::bytes(tile.n, tile.k) + PickCoder<Values>::bytes(tile.k);
    if (Work::variable && block.thread() == 0) store_aligned(wire - 8, tile.k);
    for (index_t w = block.thread(); w < bytes / 4; w += block_threads)
      reinterpret_cast<std::uint32_t*>(wire)[w] = 0;
    for (index_t w = block.thread(); w < blocks_for(tile.n, 32); w += block_threads) shared.picked[w] = 0;
    block.sync();
    for (index_t e = block.thread(); e < tile.k; e += block_threads)
      atomic_or(&shared.picked[positions[e] / 32], 1U << positions[e] % 32);
    if (tile.is_bitmap()) {
      block.sync();
      for (index_t w = block.thread(); w < blocks_for(tile.n, 32); w += block_threads)
        reinterpret_cast<std::uint32_t*>(wire)[w] = shared.picked[w];
    } else {
      const PackPositions pack{positions, tile.k, position_bits(tile.n), wire};
      for (index_t g = block.thread(); g < pack.groups(tile.k); g += block_threads) pack(g);
    }
    CodePicks<Values>::code(
        block, shared.code, tile.k, tile.begin, draw, section + tile.values_at(),
        [=](index_t e) { return x[positions[e]]; }, [=](index_t e, float value) { x[positions[e]] = value; });
  }
  TERSE_HD static float read(const Shared& shared, const float* x, int e) {
    return (shared.picked[e / 32] >> e % 32 & 1) != 0 ? x[e] : 0.0F;
  }
};

/// True if the kernel fits a block's shared memory: 48 KiB, of which a scan takes up to 1 KiB.
template <class Basis, int S, class Values>
inline constexpr bool takes_top_picks = sizeof(TopPicksShared<Basis, S, Values>) <= std::size_t{47} << 10;

TERSE_NUMERICS_END

/// Selections whose picks from small units TopPicksKernel can make.
template <class Selection, class Values>
concept PicksAtOnce = PicksByRank<Selection> && !Traits<Selection>::single_stage &&
                      takes_top_picks<terse::Elements, 64, Values>;

/// Checks whether a block of threads can encode each unit.
template <class UnitsOf>
bool are_small(PlacedRanges ranges) {
  for (const PlacedRange& placed : ranges)
    for (UnitsOf all(*placed.range); all.more(); all.next())
      if (all.unit().count > placed_together) return false;
  return true;
}

/// Encodes `ranges`, whose units are small, each to `base` plus its `going`. Calls told(c, bytes) for each range.
template <class UnitsOf, class Values, GridExecutor E, class Selection, class Incoming, class Message,
          class Feedback, class Told>
void encode_small_units(E ex, const Selection& selection, PlacedRanges ranges, Mask<typename E::memory> mask,
                        Incoming incoming, Message message, Feedback feedback, const EncodeContext& context,
                        std::byte* base, std::uint32_t* bad, Told told) {
  using Work = SmallUnits<Selection::variable>;
  using Kernel = TopPicksKernel<terse::Elements, 64, Values, Work, typename E::memory, Arriving<Incoming>,
                                Message, Feedback>;
  const Arriving<Incoming> arriving(incoming);
  Work work;
  const auto flush = [&] {
    if (work.units.count == 0) return;
    ex.launch(Kernel{work, {}, largest_finite, mask, arriving, {message, bad}, feedback, base, context.local},
              work.units.count);
    work.units.count = 0;
  };
  for (std::size_t c = 0; c < ranges.size(); ++c) {
    index_t at = 0;
    for (UnitsOf all(*ranges[c].range); all.more(); all.next()) {
      PickUnits::Unit unit;
      unit.piece = all.unit();
      const index_t n = unit.piece.count;
      unit.k = selection.largest(n, context.step);
      unit.positions_at = ranges[c].going + at + (Selection::variable ? 8 : 0);
      at = unit.positions_at + selection.index_bytes(n, unit.k) + PickCoder<Values>::bytes(unit.k) -
           ranges[c].going;
      work.units.units[work.units.count++] = unit;
      if (work.units.count == PickUnits::capacity) flush();
    }
    told(static_cast<int>(c), at);
  }
  flush();
}

}  // namespace terse::detail
