// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device/verbs/arriving.hpp"

// The kernels of verbs whose functor names its streams, see executor/streams.hpp and executor/quads.hpp. Their results
// equal those of the kernels that process lane by lane, bit for bit. The last rows of a tile, and all rows if a stream
// is misaligned, are processed element by element.

namespace terse::detail {

template <class Incoming, class F>
concept RunsWide = NamesStreams<F> && requires {
  typename Incoming::template Rowwise<1>;
};

TERSE_NUMERICS_BEGIN

/// A thread's tile and lanes.
struct WidePlace {
  std::uint32_t number;  // no memory holds 2^32 tiles
  int lane;              // the first of four
  int thread;            // in its warp

  template <class Block>
  TERSE_HD WidePlace(const Block& block, Tuning tuning)
      : number(static_cast<std::uint32_t>(block.index() * (tuning.threads / row_threads) +
                                          block.thread() / row_threads)),
        lane(block.thread() % row_threads * quad),
        thread(block.thread() % 32) {}
};

/// Kernel that calls f(piece, i, keep[, sum]) for every element of a slice.
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
  int halvings;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr int rows = tuned_rows<tuned, F, (Incoming::bits > 0)>;
    const WidePlace place(block, tuning);
    if (place.number >= slice.tiles << halvings) return;
    const Tile tile = slice.part_of_tile(place.number, halvings);
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
      if (b >= tile.end) break;  // the mask may have no word here
      const FourOf<1, Space> keep(mask, tile.piece.offset + b + place.lane);
      TERSE_ROLLED
      for (int j = 0; j < quad && b + place.lane + j < tile.end; ++j)
        incoming.call(f, tile, b, place.lane + j, keep(0, j));
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
