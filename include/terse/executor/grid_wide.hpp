// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/core/draw.hpp"
#include "terse/executor/grid_arriving.hpp"
#include "terse/executor/reduction.hpp"

// The kernels of verbs whose functor names its streams, see executor/streams.hpp and executor/quads.hpp. What they leave is
// what those that go lane by lane leave, to the bit. The last rows of a tile, and all of them where a stream is misaligned, go
// element by element.

namespace terse::detail {

template <class Incoming, class F>
concept RunsWide = NamesStreams<F> && requires {
  typename Incoming::template Rowwise<1>;
};

TERSE_NUMERICS_BEGIN

/// Whose tile and which of its lanes a thread works on.
struct WidePlace {
  std::uint32_t number;  // no memory holds 2^32 tiles
  int lane;              // the first of four
  int thread;            // of the warp

  template <class Block>
  TERSE_HD WidePlace(const Block& block, Tuning tuning)
      : number(static_cast<std::uint32_t>(block.index() * (tuning.threads / row_threads) +
                                          block.thread() / row_threads)),
        lane(block.thread() % row_threads * quad),
        thread(block.thread() % 32) {}
};

/// f(piece, i, keep[, sum]) for every element of a slice.
template <Tuning tuned, class Space, class Incoming, class F>
struct ForEachWideKernel {
  static constexpr Tuning tuning = tuned;
  static constexpr bool cooperative = false;
  struct Shared {};
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;
  bool aligned;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr int rows = tuning.rows > 0 ? tuning.rows : rows_of<F, (Incoming::bits > 0)>;
    const WidePlace place(block, tuning);
    if (place.number >= slice.tiles) return;
    const Tile tile = slice.tile(place.number);
    F f = f_;
    enter(f, tile.piece);
    if (is_idle(f)) return;
    for (index_t b = tile.begin; b < tile.end; b += lanes) {
      for (; aligned && b + rows * lanes <= tile.end; b += rows * lanes) {
        const index_t first = tile.piece.offset + b + place.lane;
        const typename Incoming::template Rowwise<rows> arrived(incoming, tile, b, place.lane);
        if (arrived.damaged()) break;
        const FourOf<rows, Space> keep(mask, first);
        with_rows<rows>(f, first, [&](int r, F& bound) {
          TERSE_UNROLL
          for (int j = 0; j < quad; ++j) arrived.call(bound, tile, r, j, keep(r, j));
        });
      }
      if (b >= tile.end) break;  // there need be no word of the mask
      const FourOf<1, Space> keep(mask, tile.piece.offset + b + place.lane);
      TERSE_ROLLED
      for (int j = 0; j < quad && b + place.lane + j < tile.end; ++j)
        incoming.call(f, tile, b, place.lane + j, keep(0, j));
    }
  }
};

/// See ReduceKernel. Lanes are joined by halves: those of 32, 16, 8 and 4 are 8, 4, 2 and 1 threads away, the others in the
/// thread.
template <Tuning tuned, class Statistic, bool Store, class Space, class Incoming, class F>
struct ReduceWideKernel {
  static constexpr Tuning tuning = tuned;
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;
  float* partial;
  index_t stride;
  std::byte* wire;
  bool aligned;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const WidePlace place(block, tuning);
    float total[static_cast<std::size_t>(width)][quad];
    for (int c = 0; c < width; ++c)
      for (int j = 0; j < quad; ++j) total[c][j] = initial_component<Statistic>(c);
    int kept = 0;
    if (place.number < slice.tiles) add_up(slice.tile(place.number), place.lane, total, kept);
    for (int half = row_threads / 2; half > 0; half /= 2) {
      const int other = (place.thread + half) % 32;
      kept += static_cast<int>(block.shuffle(static_cast<std::uint32_t>(kept), other));
      for (int c = 0; c < width; ++c)
        for (int j = 0; j < quad; ++j)
          total[c][j] = join_component<Statistic>(
              c, total[c][j],
              std::bit_cast<float>(block.shuffle(std::bit_cast<std::uint32_t>(total[c][j]), other)));
    }
    if (place.lane != 0 || place.number >= slice.tiles) return;
    float* to = partial + slice.first_tile + place.number;
    for (int c = 0; c < width; ++c, to += stride)
      *to = join_component<Statistic>(c, join_component<Statistic>(c, total[c][0], total[c][2]),
                                      join_component<Statistic>(c, total[c][1], total[c][3]));
    *to = std::bit_cast<float>(kept);
  }

 private:
  TERSE_HD static void add(const Sample& sample, bool keep, int j,
                           float (&total)[static_cast<std::size_t>(width)][quad]) {
    float term[Statistic::width];
    Statistic::terms(sample.value, term);
    for (int c = 0; c < Statistic::width; ++c)
      total[c][j] = Statistic::join(total[c][j], keep_if(keep, term[c], Statistic::initial));
    total[Statistic::width][j] += sample.bad;
  }
  TERSE_HD TERSE_INLINE void add_up(const Tile& tile, int lane,
                                    float (&total)[static_cast<std::size_t>(width)][quad], int& kept) const {
    constexpr int rows = tuning.rows > 0 ? tuning.rows : rows_of<F, (Incoming::bits > 0)>;
    F f = f_;
    enter(f, tile.piece);
    for (index_t b = tile.begin; b < tile.end; b += lanes) {
      for (; aligned && b + rows * lanes <= tile.end; b += rows * lanes) {
        const index_t first = tile.piece.offset + b + lane;
        const typename Incoming::template Rowwise<rows> arrived(incoming, tile, b, lane);
        if (arrived.damaged()) break;
        const FourOf<rows, Space> keep(mask, first);
        TERSE_UNROLL
        for (const std::uint32_t bits : keep.bits) kept += std::popcount(bits & 15);
        with_rows<rows>(f, first, [&](int r, F& bound) {
          float value[quad];
          TERSE_UNROLL
          for (int j = 0; j < quad; ++j) {
            const bool here = keep(r, j);
            const Sample sample = arrived.call(bound, tile, r, j, here);
            add(sample, here, j, total);
            value[j] = sample.value;
          }
          if constexpr (Store) {
            std::byte* const to = wire + tile.going + 4 * (b + r * lanes + lane);
            store_aligned(to, two_of(value[0], value[1]));
            store_aligned(to + 8, two_of(value[2], value[3]));
          }
        });
      }
      if (b >= tile.end) break;
      const FourOf<1, Space> keep(mask, tile.piece.offset + b + lane);
      for (int j = 0; j < quad; ++j) {
        const index_t at = b + lane + j;
        if (at < tile.end) {
          const bool here = keep(0, j);
          const Sample sample = incoming.call(f, tile, b, lane + j, here);
          add(sample, here, j, total);
          kept += here;
          if constexpr (Store) store_aligned(wire + tile.going + 4 * at, sample.value);
        } else if (Store && at == tile.piece.count && tile.piece.count % 2 != 0) {
          store_aligned(wire + tile.going + 4 * at, 0.0F);  // the piece ends at 8 bytes
        }
      }
    }
  }
  TERSE_HD static std::uint64_t two_of(float low, float high) {
    return std::bit_cast<std::uint32_t>(low) | std::uint64_t{std::bit_cast<std::uint32_t>(high)} << 32;
  }
};

/// The 16 random bits of four neighbouring elements in each of `Rows` rows. Eight elements share a block of the draw, and two
/// threads have them: one makes the block of even rows, the other that of odd ones.
template <int Rows>
struct WideRandom {
  std::uint32_t words[Rows][2];

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

/// See PackKernel. Bits of eight rows make words of a row by a transpose among eight threads.
template <Tuning tuned, int Bits, bool Stochastic, class Scale, class Space, class F>
struct PackWideKernel {
  static constexpr Tuning tuning = tuned;
  static constexpr bool cooperative = true;
  struct Shared {};
  using Element = CodeElement<Bits>;
  static constexpr int rows = 8;
  Slice slice;
  Mask<Space> mask;
  F f_;
  const Scale* scales;
  bool whole;
  std::byte* wire;
  StepDraw draw;
  bool aligned;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const WidePlace place(block, tuning);
    const bool here = place.number < slice.tiles;
    const Tile tile = slice.tile(here ? place.number : 0);
    const index_t end = here ? tile.end : tile.begin;
    const auto scale = prepared(f_, scales[whole ? 0 : tile.unit]);
    F f = f_;
    enter(f, tile.piece);
    // Both tiles of a warp go on until the longer one is done, by element where one of them has to.
    for (index_t b = tile.begin; block.ballot(b < end) != 0; b += rows * lanes) {
      Planes planes{};
      if (block.ballot(b < end && !(aligned && b + rows * lanes <= end)) != 0) {
        by_element(tile, b, end, place.lane, f, scale, planes);
      } else if constexpr (Stochastic) {
        const WideRandom<rows> random(block, draw.here(), tile.piece.offset + b, place);
        if (b < end) by_rows(tile, b, place.lane, f, scale, random, planes);
      } else {
        if (b < end) by_rows(tile, b, place.lane, f, scale, NoRandom{}, planes);
      }
      if constexpr (Bits < 8) {
        const index_t row = b + place.thread % 8 * lanes;
        std::byte* const to = wire + tile.going + row / 8 * Bits + place.lane / 32 * 4;
        TERSE_UNROLL
        for (int bit = 0; bit < Bits; ++bit) {
          const std::uint32_t word = transposed_nibbles(block, planes.bits[bit], place.thread);
          if (row < end) store_aligned(to + 8 * bit, word);
        }
      }
    }
  }

 private:
  /// For each bit of a code that of four lanes, row r's at 4 r.
  struct Planes {
    std::uint32_t bits[static_cast<std::size_t>(Bits < 8 ? Bits : 1)];
    TERSE_HD void note(int r, int j, std::uint32_t code) {
      TERSE_UNROLL
      for (int bit = 0; bit < Bits; ++bit) bits[bit] |= (code >> bit & 1U) << (quad * r + j);
    }
  };
  template <class Prepared, class Random>
  TERSE_HD TERSE_INLINE void by_rows(const Tile& tile, index_t b, int lane, F& f, const Prepared& scale,
                                     const Random& random, Planes& planes) const {
    const index_t first = tile.piece.offset + b + lane;
    const FourOf<rows, Space> keep(mask, first);
    with_rows<rows>(f, first, [&](int r, F& bound) {
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
  template <class Prepared>
  TERSE_HD TERSE_INLINE void by_element(const Tile& tile, index_t b, index_t end, int lane, F& f,
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
        if (live)
          code = f(tile.piece, first + j, FourOf<1, Space>(mask, first)(0, j), scale,
                   static_cast<std::uint32_t>(random >> 16 * j & 0xFFFF));
        if constexpr (Bits < 8) {
          planes.note(r, j, code);
        } else {
          // The piece ends at a multiple of 8 bytes.
          const index_t byte = at * static_cast<index_t>(sizeof(Element));
          if (live || (end == tile.piece.count && byte < code_bytes<Bits>(end)))
            store_aligned(wire + tile.going + byte, static_cast<Element>(code));
        }
      }
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
