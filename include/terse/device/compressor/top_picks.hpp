// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/code_picks.hpp"
#include "terse/device/compressor/cosines.hpp"
#include "terse/device/compressor/units.hpp"

// The encoder of small units (up to 4096 elements) on a grid executor: one block of threads processes each unit from
// the message to the error feedback. It picks the largest of a piece, or of a tile in any basis, and codes them by any
// coder, with the same picks and bytes as on the host. Of larger units: picks.hpp.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

template <class Basis, int S, class Values>
struct TopPicksShared {
  using Shape = TileTransform<Basis, S>;
  /// A copy of a tile. The other copy has room for a selection's counters, and then for its positions.
  union Copy {
    float tile[Shape::room];
    SelectFewKernel::Counters counters;
    std::uint32_t positions[Shape::numbers];
  };
  Copy one, other;
  SelectFewKernel::Rest select;
  typename CodePicks<Values>::Shared code;
};

/// Kernel that encodes each unit in one block: evaluates the message, picks from it in the basis's coordinates, writes
/// the picks, and commits the values that receivers will read. No two blocks share an element.
template <class Basis, class Sections, class Values, class Space, class Incoming, class Message,
          class Feedback>
struct TopPicksKernel {
  static constexpr bool cooperative = true;
  using Units = SentUnits<Sections>;
  using Shape = TileTransform<Basis, Units::side>;
  using Shared = TopPicksShared<Basis, Units::side, Values>;
  Units units;
  CosineTables tables;
  float limit;  // of numbers
  Mask<Space> mask;
  Incoming incoming;
  Message message;
  Feedback feedback;
  std::byte* base;  // from which offsets count
  StepDraw draw;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const SentUnit tile = units.part(Units::elements, block.index());
    const Shape shape(tile.place, tables);
    float *x = shared.one.tile, *spare = shared.other.tile;
    bool good = evaluate(block, tile.piece, shape, x);
    block.sync();
    shape.forward(block, x, spare);
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[e] = Shape::within(limit, x[shape.number(e)], good);
      block.sync();
      swap_copies(x, spare);
    }
    if (!good) atomic_raise(bad);
    auto& rest = spare == shared.other.tile ? shared.other : shared.one;
    SelectFewKernel{x, tile.n, static_cast<std::uint32_t>(tile.k), rest.positions}(block, shared.select,
                                                                                   rest.counters);
    write(block, tile, shared, rest.positions, x);
    block.sync();
    // Receivers read picks as coded, and zeros for the other numbers.
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[shape.number(e)] = read(shared, x, e);
      block.sync();
      swap_copies(x, spare);
      shape.inverse(block, x, spare);
    }
    Feedback view = feedback;
    enter(view, tile.piece);
    const auto commit = [&](int e, float decoded) {
      const index_t i = shape.index(e);
      // As on the host, picks from pieces count as kept.
      view.commit(i, Units::side == 0 || keeps(i), view.load(i), decoded);
    };
    if constexpr (!Basis::transforms && commits_zero<Feedback>()) {
      TERSE_ROLLED
      for (int p = block.thread(); p < tile.k; p += block_threads) {
        const auto e = static_cast<int>(rest.positions[p]);
        commit(e, x[e]);
      }
    } else {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        commit(e, Basis::transforms ? x[shape.element(e)] : read(shared, x, e));
    }
  }

 private:
  TERSE_HD static void swap_copies(float*& x, float*& spare) {
    float* const other = spare;
    spare = x;
    x = other;
  }
  TERSE_HD bool keeps(index_t i) const { return (mask.word(i) >> i % alignment & 1) != 0; }
  /// Evaluates and stores the message. Returns false if one of this thread's values is not finite.
  template <class Block>
  TERSE_HD bool evaluate(const Block& block, const Piece& piece, const Shape& shape, float* x) const {
    Message f = message;
    enter(f, piece);
    const Tile whole{piece};
    bool good = true;
    const auto each = [&](const auto& keep) {
      for (int e = block.thread(); e < shape.count(); e += block_threads) {
        const index_t i = shape.index(e);
        good &= incoming.call(f, whole, i - piece.offset, 0, keep(i)).bad == 0;
        x[shape.element(e)] = *feedback.at(i);
      }
    };
    // Without a mask, which is usual, this takes half the instructions.
    if (mask.words == nullptr)
      each([](index_t) { return true; });
    else
      each([&](index_t i) { return keeps(i); });
    return good;
  }
  /// Writes positions and values. In `x`, replaces values by those that receivers will read.
  template <class Block>
  TERSE_HD void write(Block& block, const SentUnit& tile, Shared& shared, const std::uint32_t* positions,
                      float* x) const {
    std::byte* const wire = base + tile.positions_at;
    auto* const words = reinterpret_cast<std::uint32_t*>(wire);
    const auto all =
        static_cast<int>(tile.values_at - tile.positions_at + PickCoder<Values>::bytes(tile.k)) / 4;
    if (Sections::variable && block.thread() == 0) store_aligned(wire - 8, tile.k);
    TERSE_ROLLED
    for (int w = block.thread(); w < all; w += block_threads) words[w] = 0;
    block.sync();
    if (Positions::is_bitmap(tile.n, tile.k)) {
      if (32 * block.thread() < tile.n) words[block.thread()] = shared.select.picks.picks[block.thread()];
    } else {
      const PackPositions pack{positions, tile.k, position_bits(tile.n), wire};
      TERSE_ROLLED
      for (index_t g = block.thread(); g < pack.groups(tile.k); g += block_threads) pack(g);
    }
    CodePicks<Values>::code(
        block, shared.code, tile.k, tile.begin, draw, base + tile.values_at,
        [=](index_t e) { return x[positions[e]]; }, [=](index_t e, float value) { x[positions[e]] = value; });
  }
  TERSE_HD static float read(const Shared& shared, const float* x, int e) {
    return (shared.select.picks.picks[e / 32] >> e % 32 & 1) != 0 ? x[e] : 0.0F;
  }
};

/// True if the kernel fits a block's shared memory of 48 KiB, of which a scan takes up to 1 KiB.
template <class Basis, int S, class Values>
inline constexpr bool takes_top_picks = sizeof(TopPicksShared<Basis, S, Values>) <= std::size_t{47} << 10;

TERSE_NUMERICS_END

/// Selections whose picks from small units in a basis can be made by TopPicksKernel.
template <class Selection, class Values, class Basis = terse::Elements, int S = 0>
concept PicksAtOnce =
    PicksByRank<Selection> && !Traits<Selection>::single_stage && takes_top_picks<Basis, S, Values>;

/// Checks whether a block of threads can encode each unit.
template <class UnitsOf>
bool are_small(PlacedRanges ranges) {
  for (const PlacedRange& placed : ranges)
    for (UnitsOf all(*placed.range); all.more(); all.next())
      if (all.unit().count > placed_together) return false;
  return true;
}

/// Encodes `ranges`, whose units are small, each to `base` plus its `going`. Calls told(c, bytes) for each range.
template <class Basis, class Values, GridExecutor E, class Sections, class Incoming, class Message,
          class Feedback, class Told>
void encode_small_units(E ex, const Sections& sections, const CosineTables& tables, float limit,
                        PlacedRanges ranges, Mask<typename E::memory> mask, Incoming incoming,
                        Message message, Feedback feedback, const EncodeContext& context, std::byte* base,
                        std::uint32_t* bad, Told told) {
  using Kernel =
      TopPicksKernel<Basis, Sections, Values, typename E::memory, Arriving<Incoming>, Message, Feedback>;
  using Units = SentUnits<Sections>;
  const Arriving<Incoming> arriving(incoming);
  for_each_table(
      sections, ranges, [&](index_t n) { return sections.selection.largest(n, context.step); },
      [&](const Units& units) {
        ex.launch(Kernel{units, tables, limit, mask, arriving, message, feedback, base, context.local, bad},
                  units.blocks[Units::elements]);
      },
      told);
}

}  // namespace terse::detail
