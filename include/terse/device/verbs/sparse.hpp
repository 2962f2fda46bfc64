// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/device/verbs/kernels.hpp"
#include "terse/executor/sparse.hpp"

// Verbs for few elements among many, on a grid.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

template <int most>
struct Arriving<ArrivedSums, most> {
  static constexpr int bits = 0, count = 0;
  ArrivedSums arrived;
  TERSE_HD explicit Arriving(ArrivedSums given) : arrived(given) {}
  TERSE_HD Arriving<ArrivedSums, 0> view() const { return Arriving<ArrivedSums, 0>(arrived); }
  static Units units() { return {}; }
  template <class F>
  TERSE_HD auto call(F& f, const Tile& tile, index_t b, int lane, bool keep) const {
    const index_t i = tile.piece.offset + b + lane;
    return f(tile.piece, i, keep, arrived.sums[i - arrived.begin]);
  }
  template <int Rows>
  struct Rowwise {
    Quad<float> sum[std::size_t{Rows}];

    TERSE_HD Rowwise(const Arriving& arriving, const Tile& tile, index_t b, int lane) {
      const float* const from =
          arriving.arrived.sums + (tile.piece.offset + b + lane - arriving.arrived.begin);
      TERSE_UNROLL
      for (int r = 0; r < Rows; ++r) sum[r] = load_quad<float>(from + r * lanes);
    }
    TERSE_HD static constexpr bool damaged() { return false; }
    template <class F>
    TERSE_HD auto call(F& bound, const Tile& tile, int r, int j, bool keep) const {
      return bound(tile.piece, j, keep, sum[r].x[j]);
    }
  };
};

template <class F>
concept CountsEntries = requires(const F& f) {
  { f.entries() } -> std::convertible_to<index_t>;
};

/// Kernel that calls f(e); each thread takes one entry after the other.
template <class F>
struct ForEachEntryKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  index_t count, blocks;
  F f;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    index_t end = count;
    if constexpr (CountsEntries<F>) {
      const index_t entries = f.entries();
      end = entries < count ? entries : count;
    }
    for (index_t e = block.index() * block_threads + block.thread(); e < end; e += blocks * block_threads)
      f(e);
  }
};

/// Number of blocks that fills every device; if `entries()` are few, more blocks would cost time.
inline constexpr index_t most_entry_blocks = 4096;

}  // namespace detail

TERSE_NUMERICS_END

template <GridExecutor E, class F>
void for_each_entry(E ex, index_t count, F f) {
  const index_t blocks =
      std::min(detail::blocks_for(count, detail::block_threads), detail::most_entry_blocks);
  if (blocks > 0) ex.launch(detail::ForEachEntryKernel<F>{count, blocks, f}, blocks);
}

}  // namespace terse
