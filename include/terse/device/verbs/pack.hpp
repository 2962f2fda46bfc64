// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "terse/core/draw.hpp"
#include "terse/device/verbs/reduce.hpp"
#include "terse/device/verbs/wide_pack.hpp"

// Coding on a grid executor.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// The 16 random bits of each of eight times 32 elements, made by the 32 threads of a warp: each thread makes one block
/// of the draw for all threads.
template <class Block>
class WarpRandom {
 public:
  /// Draws for the eight rows of lanes from arena index `first`.
  TERSE_HD void refill(const Draw& draw, index_t first, int lane) {
    const int thread = lane % 32;
    words_ = draw.block(static_cast<std::uint64_t>(first / 8 + thread / 4 * 8 + lane / 32 * 4 + thread % 4));
  }
  /// Returns row `row`'s bits for this lane; the whole warp must call it.
  TERSE_HD std::uint32_t take(Block& block, int row, int lane) const {
    const int from = 4 * row + lane % 32 / 8, word = lane % 8 / 2;
    std::uint32_t taken = 0;
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t theirs = block.shuffle(words_[static_cast<std::size_t>(w)], from);
      if (w == word) taken = theirs;
    }
    return lane % 2 == 0 ? taken & 0xFFFF : taken >> 16;
  }

 private:
  std::array<std::uint32_t, 4> words_{};
};

/// Packs one code per lane of a tile's row, which begins `b` elements into the piece; the piece's codes begin at `to`.
/// Lanes after the tile's end have code 0; the whole warp stores at once.
template <int Bits, class Block>
TERSE_HD void store_codes(Block& block, const Tile& tile, index_t b, int lane, CodeElement<Bits> code,
                          std::byte* to) {
  if constexpr (Bits < 8) {
    for (int bit = 0; bit < Bits; ++bit) {
      const std::uint32_t word = block.ballot((code >> bit & 1) != 0);
      if (lane % 32 == bit) store_aligned(to + b / 8 * Bits + 8 * bit + lane / 32 * 4, word);
    }
  } else {
    // The piece ends at a multiple of 8 bytes, and the tile's last row may extend beyond it.
    const index_t place = (b + lane) * static_cast<index_t>(sizeof code);
    if (b + lane < tile.end || (tile.end == tile.piece.count && place < code_bytes<Bits>(tile.piece.count)))
      store_aligned(to + place, code);
  }
}

/// Kernel that writes codes of f(piece, i, keep, scale of the unit, random).
template <Tuning tuned, int Bits, bool Stochastic, class Scale, class Space, class F>
struct PackBody {
  static constexpr bool wide = NamesStreams<F>;
  static constexpr int threads = wide ? row_threads : lanes;  // that share a tile
  static constexpr Tuning tuning = wide ? tuned : Tuning{.threads = block_threads};
  static constexpr int tiles = tuning.threads / threads;  // of a block
  static constexpr bool cooperative = wide || Bits < 8 || Stochastic;
  struct Shared {};
  Mask<Space> mask;
  WideCodes<Bits, Stochastic, F> codes;
  const Scale* scales;
  bool whole;
  int halvings;  // 0 lane by lane

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&, const SliceView& slice,
                           const Arriving<NoPackets, 0>&) const {
    if constexpr (wide) {
      const WidePlace place(block, tuning);
      const bool here = place.number < slice.tiles << halvings;
      const Tile tile = slice.part_of_tile(here ? place.number : 0, halvings);
      const Scale& scale = scales[whole ? 0 : tile.unit];
      if (here && place.lane == 0) put_scale(tile, scale, codes.wire);
      codes.store(block, place, tile, here, mask, scale, NowhereElse{});
    } else {
      const std::uint32_t number = tile_number(block);
      if (number < slice.tiles)  // equal for all threads of a warp
        by_lane(block, slice.tile(number), block.thread() % lanes);
    }
  }

 private:
  template <class Block>
  TERSE_HD void by_lane(Block& block, const Tile& tile, int lane) const {
    const auto scale = prepared(codes.f_, scales[whole ? 0 : tile.unit]);
    if (lane == 0) put_scale(tile, scales[whole ? 0 : tile.unit], codes.wire);
    std::byte* const to = codes.wire + tile.going;
    F f = codes.f_;
    enter(f, tile.piece);
    WarpRandom<Block> random;
    int row = 0;
    for (index_t b = tile.begin; b < tile.end; b += lanes, ++row) {
      const index_t first = tile.piece.offset + b;
      std::uint32_t bits = 0;
      if constexpr (Stochastic) {
        if (row % 8 == 0) random.refill(codes.draw.here(), first, lane);
        bits = random.take(block, row % 8, lane);
      }
      CodeElement<Bits> code = 0;
      if (b + lane < tile.end)
        code = static_cast<CodeElement<Bits>>(
            f(tile.piece, first + lane, (mask.word(first) >> lane & 1) != 0, scale, bits));
      store_codes<Bits>(block, tile, b, lane, code, to);
    }
  }
};

/// Kernel that copies codes, and the scales of their units, which are whole pieces or the whole range, into packets.
template <int Bits, class Scale>
struct PlaceCodesBody {
  static constexpr bool cooperative = false;
  struct Shared {};
  MeasuredCodes<Bits, Scale> measured;
  const Scale* scales;
  bool whole;
  std::byte* wire;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&, const SliceView& slice,
                           const Arriving<NoPackets, 0>&) const {
    const std::uint32_t number = tile_number(block);
    if (number >= slice.tiles) return;
    const Tile tile = slice.tile(number);
    const int thread = block.thread() % lanes;
    if (thread == 0 && tile.begin == 0) {
      const Scale& scale = scales[whole ? 0 : tile.unit];
      put_scale(tile, scale, wire);
      measured.note(tile.piece.segment, scale);
    }
    const std::byte* const from = measured.at(tile.piece.offset + tile.begin);
    std::byte* const to = wire + tile.going + tile.begin / 8 * Bits;
    const index_t bytes = code_bytes<Bits>(tile.end - tile.begin);
    for (index_t at = 8 * thread; at < bytes; at += 8 * lanes)
      store_aligned(to + at, load_aligned<std::uint64_t>(from + at));
  }
};

TERSE_NUMERICS_END

/// Copies codes into several packets, at their ranges' places after `wire`, and the scales to the places that the ranges
/// name and to the codes' own table.
template <int Bits, GridExecutor E, class Scale>
void place_codes(E ex, PlacedRanges ranges, Units units, const MeasuredCodes<Bits, Scale>& measured,
                 view<const Scale, typename E::memory> scales, std::byte* wire) {
  for_each_slice<0, Bits>(ranges, units, sizeof(Scale), [&](const Slice& slice, bool) {
    launch_body(ex, slice, NoPackets{},
                PlaceCodesBody<Bits, Scale>{measured, scales.data(), units.whole, wire},
                blocks_for(slice.tiles, tiles_per_block));
  });
}

}  // namespace detail

/// Packs several packets, at their ranges' places after `wire`, and copies the scales to the places that the ranges
/// name.
template <int Bits, bool Stochastic, GridExecutor E, class Scale, class F>
void pack(E ex, detail::PlacedRanges ranges, Units units, Mask<typename E::memory> mask, F f,
          view<const Scale, typename E::memory> scales, std::byte* wire, StepDraw draw) {
  using Body = detail::PackBody<detail::tuning_of<E>(), Bits, Stochastic, Scale, typename E::memory, F>;
  detail::for_each_slice<0, Bits>(ranges, units, sizeof(Scale), [&](const detail::Slice& slice, bool) {
    const int halvings = Body::wide ? slice.halvings() : 0;
    detail::launch_body(
        ex, slice, NoPackets{},
        Body{mask, {f, wire, draw, detail::streams_aligned(f)}, scales.data(), units.whole, halvings},
        detail::blocks_for(slice.tiles << halvings, Body::tiles));
  });
}

template <int Bits, bool Stochastic, GridExecutor E, class Scale, class F>
void pack(E ex, const Range& range, Units units, Mask<typename E::memory> mask, F f,
          view<const Scale, typename E::memory> scales, std::byte* wire, StepDraw draw) {
  const detail::PlacedRange one{&range};
  pack<Bits, Stochastic>(ex, detail::PlacedRanges(&one, 1), units, mask, f, scales, wire, draw);
}

/// Reduces and packs in one kernel, for several packets at their ranges' places after `wire`. Requires that units fit a
/// tile, that none is longer than `Longest`, and that `f` hands its sample over to `g`; otherwise does nothing and
/// returns false. Scales are written to the places that the ranges name and, unless it is nullptr, to `scales`.
template <class Statistic, int Bits, bool Stochastic, index_t Longest = detail::reduction_block,
          GridExecutor E, class Incoming, class F, class G>
bool reduce_pack_at_once(E ex, detail::PlacedRanges ranges, Units units, Mask<typename E::memory> mask,
                         Incoming incoming, F f, G g, typename Statistic::Scale* scales, std::byte* wire,
                         StepDraw draw, std::uint32_t* bad) {
  using Arrived = detail::Arriving<Incoming, 0>;
  constexpr index_t room =
      Longest <= detail::reduction_block / 4 ? detail::reduction_block / 4 : detail::reduction_block;
  // Sums of packets require many warps at a time, for which long units leave no room.
  constexpr bool fits =
      Longest <= detail::reduction_block && (Arrived::bits == 0 || room < detail::reduction_block);
  if constexpr (fits && detail::RunsWide<Arrived, F> && detail::HandsOver<F, G>) {
    if (!units.whole && units.size > 0 && units.size <= room && detail::same_stream(f, g) &&
        detail::streams_aligned(f)) {
      constexpr index_t scale_bytes = sizeof(typename Statistic::Scale);
      using Body = detail::ReducePackBody<detail::tuning_of<E>(), Statistic, Bits, Stochastic, room,
                                          typename E::memory, Arrived, F, G>;
      detail::for_each_slice<Arrived::bits, Bits>(
          ranges, units, scale_bytes, [&](const detail::Slice& slice, bool) {
            detail::launch_body(ex, slice, incoming, Body{mask, f, {g, wire, draw, true}, scales, bad},
                                detail::blocks_for(slice.tiles, Body::tiles));
          });
      return true;
    }
  }
  return false;
}

/// Reduces and packs in one kernel if possible, otherwise in several.
template <class Statistic, int Bits, bool Stochastic, GridExecutor E, class Incoming, class F, class G>
void reduce_pack(E ex, const Range& range, Units units, Mask<typename E::memory> mask, Incoming incoming, F f,
                 G g, out<E> scratch, out<E, typename Statistic::Scale> scales, std::byte* wire,
                 StepDraw draw, std::uint32_t* bad) {
  const detail::PlacedRange one{&range};
  if (reduce_pack_at_once<Statistic, Bits, Stochastic>(ex, detail::PlacedRanges(&one, 1), units, mask,
                                                       incoming, f, g, scales.data(), wire, draw, bad))
    return;
  reduce<Statistic>(ex, range, units, mask, incoming, f, scratch, scales, bad);
  pack<Bits, Stochastic>(ex, range, units, mask, g, in<E, typename Statistic::Scale>(scales), wire, draw);
}

}  // namespace terse
