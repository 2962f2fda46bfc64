// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "terse/core/draw.hpp"
#include "terse/device/verbs/tile_sums.hpp"

// Coding by functors that name their streams.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// The 16 random bits of four neighbouring elements in each of `Rows` rows. Eight elements share a block of the draw
/// and belong to two threads. One thread makes the blocks of even rows, the other those of odd rows.
template <int Rows>
struct WideRandom {
  std::uint32_t words[static_cast<std::size_t>(Rows)][2];

  template <class Block>
  TERSE_HD WideRandom(Block& block, const Draw& draw, index_t first, const WidePlace& place) {
    const bool odd = place.lane % 8 != 0;
    TERSE_UNROLL
    for (int r = 0; r < Rows; r += 2) {
      const auto made = draw.block(static_cast<std::uint64_t>((first + (r + odd) * lanes + place.lane) / 8));
      for (std::size_t w = 0; w < 2; ++w) {
        const std::uint32_t theirs = block.shuffle(odd ? made[w] : made[w + 2], place.thread ^ 1);
        words[r][w] = odd ? theirs : made[w];
        words[r + 1][w] = odd ? made[w + 2] : theirs;
      }
    }
  }
  TERSE_HD std::uint32_t of(int r, int j) const { return words[r][j / 2] >> 16 * (j % 2) & 0xFFFF; }
};
struct NoRandom {
  TERSE_HD static std::uint32_t of(int, int) { return 0; }
};

/// Codes of a tile. Eight threads transpose the bits of eight rows into words of one row each.
template <int Bits, bool Stochastic, class F>
struct WideCodes {
  using Element = CodeElement<Bits>;
  using Planes = detail::Planes < Bits<8 ? Bits : 1>;
  static constexpr int rows = Planes::rows;
  F f_;
  std::byte* wire;
  StepDraw draw;
  bool aligned;

  /// Stores a tile's codes. The whole warp takes part. Both of its tiles continue until the longer one is done, and go
  /// element by element if one of them requires it. `here` is true if this thread has a tile. `elsewhere` keeps the
  /// last stream, or doesn't.
  template <class Block, class Space, class Scale, class Elsewhere>
  TERSE_HD TERSE_INLINE void store(Block& block, const WidePlace& place, const Tile& tile, bool here,
                                   const Mask<Space>& mask, const Scale& given,
                                   const Elsewhere& elsewhere) const {
    const index_t end = here ? tile.end : tile.begin;
    const auto scale = prepared(f_, given);
    F to = f_;
    enter(to, tile.piece);
    F f = elsewhere.moved(to);
    for (index_t b = tile.begin; block.ballot(b < end) != 0; b += rows * lanes) {
      Planes planes{};
      if (block.ballot(b < end && !(aligned && b + rows * lanes <= end)) != 0) {
        by_element(tile, b, end, place.lane, mask, f, elsewhere, scale, planes);
      } else if constexpr (Stochastic) {
        const WideRandom<rows> random(block, draw.here(), tile.piece.offset + b, place);
        if (b < end) by_rows<Elsewhere::turn>(tile, b, place.lane, mask, f, to, scale, random, planes);
      } else {
        if (b < end) by_rows<Elsewhere::turn>(tile, b, place.lane, mask, f, to, scale, NoRandom{}, planes);
      }
      if constexpr (Bits < 8) planes.store(block, place.thread, wire + tile.going, b, end);
    }
  }

 private:
  template <Turn turn, class Space, class Prepared, class Random>
  TERSE_HD TERSE_INLINE void by_rows(const Tile& tile, index_t b, int lane, const Mask<Space>& mask, F& f,
                                     F& to, const Prepared& scale, const Random& random,
                                     Planes& planes) const {
    const index_t first = tile.piece.offset + b + lane;
    const FourOf<rows, Space> keep(mask, first);
    with_rows<rows, turn>(f, to, first, [&](int r, F& bound) {
      Quad<Element> codes;
      TERSE_UNROLL
      for (int j = 0; j < quad; ++j) {
        const std::uint32_t code = bound(tile.piece, j, keep(r, j), scale, random.of(r, j));
        if constexpr (Bits < 8)
          planes.note(r, j, code);
        else
          codes.x[j] = static_cast<Element>(code);
      }
      if constexpr (Bits >= 8)
        store_quad(reinterpret_cast<Element*>(wire + tile.going) + b + r * lanes + lane, codes);
    });
  }
  template <class Space, class Elsewhere, class Prepared>
  TERSE_HD TERSE_INLINE void by_element(const Tile& tile, index_t b, index_t end, int lane,
                                        const Mask<Space>& mask, F& f, const Elsewhere& elsewhere,
                                        const Prepared& scale, Planes& planes) const {
    TERSE_ROLLED
    for (int r = 0; r < rows; ++r, b += lanes) {
      const index_t first = tile.piece.offset + b + lane;
      std::uint64_t random = 0;
      if constexpr (Stochastic) {
        const auto made = draw.here().block(static_cast<std::uint64_t>(first / 8));
        const bool odd = lane % 8 != 0;
        random = (odd ? made[2] : made[0]) | std::uint64_t{odd ? made[3] : made[1]} << 32;
      }
      TERSE_ROLLED
      for (int j = 0; j < quad; ++j) {
        const index_t at = b + lane + j;
        const bool live = at < end;
        std::uint32_t code = 0;
        if (live) {
          code = f(tile.piece, first + j, FourOf<1, Space>(mask, first)(0, j), scale,
                   static_cast<std::uint32_t>(random >> 16 * j & 0xFFFF));
          elsewhere.take(first + j);
        }
        if constexpr (Bits < 8) {
          planes.note(r, j, code);
        } else {
          // The piece is padded to a multiple of 8 bytes.
          const index_t byte = at * static_cast<index_t>(sizeof(Element));
          if (live || (end == tile.piece.count && byte < code_bytes<Bits>(end)))
            store_aligned(wire + tile.going + byte, static_cast<Element>(code));
        }
      }
    }
  }
};

/// Copies the unit's scale into the packet.
template <class Scale>
TERSE_HD void put_scale(const Tile& tile, const Scale& scale, std::byte* wire) {
  if constexpr (!std::is_empty_v<Scale>) {
    if (tile.scales < 0) return;
    std::byte* const to = wire + tile.scales + tile.local * static_cast<index_t>(sizeof scale);
    std::memcpy(__builtin_assume_aligned(to, 4), &scale, sizeof scale);
    if (tile.pads) store_aligned(to + sizeof scale, std::uint32_t{0});
  }
}

/// A stream that one functor hands over to another, for the duration of a tile.
template <class Last, Turn which>
struct HandedOver {
  static constexpr Turn turn = which;
  static constexpr bool kept = Last::access != Access::hands_over;
  float* here;    // the tile's first element
  index_t first;  // its arena index
  float* there;   // place of element 0 of the arena

  template <class F>
  TERSE_HD F moved(const F& f) const {
    return moved_to(f, here, first);
  }
  TERSE_HD void bring(index_t i) const {
    if constexpr (kept) here[i - first] = there[i];
  }
  TERSE_HD void take(index_t i) const {
    if constexpr (kept) there[i] = here[i - first];
  }
};

/// Kernel for the statistic and the codes of units no longer than a tile. Between both, the values that f hands over to
/// g stay in the multiprocessor, so the message is read once. One warp per block, with room for units of `Longest`
/// elements, so that more blocks fit.
template <Tuning tuned, class Statistic, int Bits, bool Stochastic, index_t Longest, class Space,
          class Incoming, class F, class G>
struct ReducePackBody {
  static constexpr int tiles = 2;
  static constexpr Tuning tuning{tiles * row_threads, tuned.rows, 0};
  static constexpr bool cooperative = true;
  struct alignas(16) Shared {
    float handed_over[tiles][static_cast<std::size_t>(Longest)];
  };
  using Scale = typename Statistic::Scale;
  using Last = decltype(last_of(std::declval<F&>().streams()));
  Mask<Space> mask;
  F f_;
  WideCodes<Bits, Stochastic, G> codes;
  Scale* scales;  // nullptr if scales go only into packets
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared, const SliceView& slice,
                           const Incoming& incoming) const {
    const WidePlace place(block, tuning);
    const bool here = place.number < slice.tiles;
    const Tile tile = slice.tile(here ? place.number : 0);
    float* const handed = shared.handed_over[place.thread / row_threads];
    const index_t first = tile.piece.offset + tile.begin;
    F f = f_;
    enter(f, tile.piece);
    const Last last = last_of(f.streams());
    const HandedOver<Last, Turn::first> from{handed, first, *last.data - *last.begin};
    F to = from.moved(f);
    OwnSums<Statistic, row_threads> sums;
    if (here)
      note_samples<tuned_rows<tuned, F, (Incoming::bits > 0)>, false>(sums, tile, incoming, mask, f, to, from,
                                                                      codes.aligned, place.lane, nullptr);
    TileTotals<Statistic> totals;
    Scale scale{};
    if (sums.join(block, totals) && here) {
      scale = totals.finish(bad);
      if (scales != nullptr) scales[tile.unit] = scale;
      put_scale(tile, scale, codes.wire);
    }
    if constexpr (!std::is_empty_v<Scale>) {
      std::uint32_t words[sizeof(Scale) / 4];
      std::memcpy(words, &scale, sizeof scale);
      for (std::uint32_t& word : words) word = block.shuffle(word, place.thread / row_threads * row_threads);
      std::memcpy(&scale, words, sizeof scale);
    }
    codes.store(block, place, tile, here, mask, scale,
                HandedOver<Last, Turn::second>{handed, first, from.there});
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
