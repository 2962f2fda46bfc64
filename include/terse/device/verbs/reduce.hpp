// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/device/verbs/last_block.hpp"
#include "terse/device/verbs/tile_sums.hpp"

// Reductions of a grid executor. One kernel sums the tiles and finishes units of one tile; another joins the tiles of
// longer units, and the pieces of a whole range.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// Kernel that evaluates and sums tiles. The partial results are in rows of `stride` floats, one for each tile of the
/// range. They are the statistic's components, the count of values that are not finite and, as integers, the count of
/// kept elements and a counter for JoinBody. If `few`, a block of threads shares each tile; otherwise a part of a
/// warp does. `Also`: SumOnly or CodeRows.
template <Tuning tuned, bool few, class Statistic, bool Store, class Space, class Incoming, class F,
          class Also>
struct ReduceBody {
  static constexpr bool wide = RunsWide<Incoming, F>;
  static_assert(wide || !Also::whole_warps);
  static constexpr int threads = few ? block_threads : wide ? row_threads : 32;  // that share a tile
  // Without a number of resident blocks, nvcc 13.0 gives the codes so few registers that it spills.
  static constexpr Tuning tuning =
      few ? Tuning{.threads = block_threads, .resident_blocks = Also::whole_warps ? 3 : 0} : tuned;
  static constexpr int tiles = tuning.threads / threads;  // of a block
  static constexpr bool cooperative = true;
  using Sums = std::conditional_t<few, HeldSums<Statistic>, OwnSums<Statistic, threads>>;
  using Shared = typename Sums::Shared;
  Mask<Space> mask;
  F f_;
  float* partial;  // nullptr if only the stored values are needed
  index_t stride;
  typename Statistic::Scale* scales;  // of units of one tile each; nullptr for others
  std::uint32_t* bad;
  std::byte* wire;
  bool aligned;
  int halvings;  // 0 with a statistic, whose shape requires whole tiles
  Also also;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared, const SliceView& slice,
                           const Incoming& incoming) const {
    const std::uint32_t number = tile_number<threads>(block, tuning);
    const int thread = block.thread() % threads;
    const bool here = few || number < slice.tiles << halvings;
    Sums sums(shared);
    if (here || Also::whole_warps) {
      const Tile tile = few ? slice.tile(number) : slice.part_of_tile(here ? number : 0, halvings);
      F f = f_;
      enter(f, tile.piece);
      sums.begin(tile, mask, block.thread());
      if constexpr (!wide) {
        note_lanes<threads, Store>(sums, tile, incoming, mask, f, thread, wire);
      } else {
        constexpr int most = tuned_rows<tuning, F, (Incoming::bits > 0)>;
        constexpr int rows = few ? std::min(most, lanes >> few_halvings) : most;
        const Tile part = few ? Slice::part_of(tile, thread / row_threads, few_halvings) : tile;
        also(block, sums, part, here, [&](auto& to, const Tile& some) {
          note_samples<rows, Store>(to, some, incoming, mask, f, f, NowhereElse{}, aligned,
                                    thread % row_threads * quad, wire);
        });
      }
    }
    if (Store && partial == nullptr) return;
    TileTotals<Statistic> totals;
    if (!sums.join(block, totals) || number >= slice.tiles) return;
    if (scales != nullptr) {
      scales[slice.first_unit + number] = totals.finish(bad);
      return;
    }
    float* to = partial + slice.first_tile + number;
    for (int c = 0; c < TileTotals<Statistic>::width; ++c, to += stride) *to = totals.of[c];
    to[0] = std::bit_cast<float>(static_cast<std::uint32_t>(totals.kept));
    to[stride] = 0;
  }
};

/// Stores the count of a long piece, 32 bits each, in place of the counts of its first two tiles.
TERSE_HD inline void put_count(float* at, index_t tiles, index_t count) {
  at[0] = std::bit_cast<float>(static_cast<std::uint32_t>(count));
  if (tiles > 1) at[1] = std::bit_cast<float>(static_cast<std::uint32_t>(count >> 32));
}
TERSE_HD inline index_t get_count(const float* at, index_t tiles) {
  const std::uint64_t high = tiles > 1 ? std::bit_cast<std::uint32_t>(at[1]) : 0;
  return static_cast<index_t>(std::bit_cast<std::uint32_t>(at[0]) | high << 32);
}

/// Kernel that joins the partial results of each unit by halves and finishes it. If the whole range is one unit, it
/// joins the pieces in their order. As long as the halves are multiples of `Near`, a power of two, many blocks work,
/// and each joins only tiles with equal remainders. A unit's last block does the rest, and the slice's last block
/// joins pieces.
template <class Statistic, index_t Near>
struct JoinBody {
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  struct Shared {
    bool last;
  };
  float* partial;
  index_t stride, blocks;  // blocks of each unit
  typename Statistic::Scale* scales;
  std::uint32_t* bad;
  float*
      all;  // the totals of the whole range so far, and the count as two halves; nullptr if each unit has a scale
  bool first, last;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared, const SliceView& slice,
                           const Arriving<NoPackets, 0>&) const {
    if (slice.unit_count > 0 && !join_unit(block, shared, slice)) return;
    if (all != nullptr && block.thread() == 0) join_pieces(slice);
  }

 private:
  TERSE_HD float* kept_of(index_t tile) const { return partial + width * stride + tile; }
  TERSE_HD std::uint32_t* counter(index_t tile) const {
    return reinterpret_cast<std::uint32_t*>(kept_of(tile) + stride);
  }

  /// Returns true in the block that is the last of the slice to have joined a piece of a whole range.
  template <class Block>
  TERSE_HD bool join_unit(Block& block, Shared& shared, const SliceView& slice) const {
    const index_t number = block.index() / blocks, part = block.index() % blocks;
    const SliceUnit unit = slice.unit(number);
    if (unit.tiles > Near) {
      join_far(unit, part * block_threads + block.thread());
      if (!is_last_block(block, shared.last, counter(unit.first_tile + 1), blocks)) return false;
    } else if (part > 0) {
      return false;
    }
    const index_t tiles = unit.tiles < Near ? unit.tiles : Near;
    const std::uint64_t kept = join_near(block, unit.first_tile, tiles);
    if (block.thread() == 0) {
      if (all != nullptr) {
        put_count(kept_of(unit.first_tile), tiles, static_cast<index_t>(kept));
      } else {
        TileTotals<Statistic> totals{{}, static_cast<index_t>(kept)};
        for (int c = 0; c < width; ++c) totals.of[c] = partial[c * stride + unit.first_tile];
        scales[slice.first_unit + number] = totals.finish(bad);
      }
    }
    return all != nullptr && is_last_block(block, shared.last, counter(slice.first_tile), slice.unit_count);
  }
  TERSE_HD void join_far(const SliceUnit& unit, index_t own) const {
    if (own >= Near) return;
    index_t half = Near;
    while (2 * half < unit.tiles) half *= 2;
    for (; half >= Near; half /= 2)
      for (index_t t = own; t < half && t + half < unit.tiles; t += Near) {
        float *const at = partial + unit.first_tile + t, *const kept = kept_of(unit.first_tile + t);
        join_results<Statistic>(at, stride, at + half, stride);
        *kept = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*kept) +
                                     std::bit_cast<std::uint32_t>(kept[half]));
      }
  }
  /// Joins `tiles` tiles into the first one, and returns the number of kept elements to the first thread.
  template <class Block>
  TERSE_HD std::uint64_t join_near(Block& block, index_t first_tile, index_t tiles) const {
    const int thread = block.thread();
    std::uint64_t kept = 0;
    for (index_t t = thread; t < tiles; t += block_threads)
      kept += std::bit_cast<std::uint32_t>(*kept_of(first_tile + t));
    index_t half = tiles > 1 ? 1 : 0;
    while (half > 0 && 2 * half < tiles) half *= 2;
    for (; half > 0; half /= 2) {
      for (index_t t = thread; t < half && t + half < tiles; t += block_threads) {
        float* const own = partial + first_tile + t;
        join_results<Statistic>(own, stride, own + half, stride);
      }
      block.sync();
    }
    return tiles > 1 ? block.sum(kept) : kept;
  }
  /// One thread does this, with as many additions as pieces.
  TERSE_HD void join_pieces(const SliceView& slice) const {
    TileTotals<Statistic> totals{{}, first ? 0 : get_count(all + width, 2)};
    for (int c = 0; c < width; ++c) totals.of[c] = first ? initial_component<Statistic>(c) : all[c];
    for (int e = 0; e < slice.count; ++e) {
      const index_t tile = slice.entries[e].first_tile;
      join_results<Statistic>(totals.of, 1, partial + tile, stride);
      totals.kept += get_count(kept_of(tile), Slice::tiles_in(slice.entries[e].piece.count));
    }
    if (last) {
      *scales = totals.finish(bad);
      return;
    }
    for (int c = 0; c < width; ++c) all[c] = totals.of[c];
    put_count(all + width, 2, totals.kept);
  }
};

TERSE_NUMERICS_END

/// Launches the kernel for the tiles of a slice, see TilesBody.
template <bool few, class Statistic, bool Store, GridExecutor E, class Incoming, class F, class Also>
void launch_reduce(E ex, const Slice& slice, Mask<typename E::memory> mask, const Incoming& incoming,
                   const F& f, float* partial, index_t stride, typename Statistic::Scale* scales,
                   std::uint32_t* bad, std::byte* wire, const Also& also) {
  const int halvings = partial == nullptr ? slice.halvings() : 0;
  using Body =
      ReduceBody<tuning_of<E>(), few, Statistic, Store, typename E::memory, Arriving<Incoming, 0>, F, Also>;
  launch_body(ex, slice, incoming,
              Body{mask, f, partial, stride, scales, bad, wire, streams_aligned(f), halvings, also},
              blocks_for(slice.tiles << halvings, Body::tiles));
}

/// Runs the common part of `reduce` and `store`. One block of threads joins up to `Near` tiles of a unit.
template <class Statistic, bool Store, index_t Near = 4096, GridExecutor E, class Incoming, class F,
          class Also = SumOnly>
void reduce_tiles(E ex, const Range& range, Units units, Mask<typename E::memory> mask, Incoming incoming,
                  F f, std::byte* wire, float* scratch, typename Statistic::Scale* scales, std::uint32_t* bad,
                  const Also& also = {}) {
  const index_t stride = tiles_of(range, units.whole ? Units{} : units);
  float* const all = scratch + (Statistic::width + 3) * stride;
  bool first = true;
  for_each_slice<Arriving<Incoming, 0>::bits, Store ? 32 : 0>(
      range, units, [&](const Slice& slice, bool last) {
        const bool joins = units.whole || slice.tiles > slice.unit_count;
        const auto launch = slice.has_few_tiles(tuning_of<E>().few_tiles)
                                ? launch_reduce<true, Statistic, Store, E, Incoming, F, Also>
                                : launch_reduce<false, Statistic, Store, E, Incoming, F, Also>;
        launch(ex, slice, mask, incoming, f, scratch, stride, joins ? nullptr : scales, bad, wire, also);
        if (joins) {
          index_t most = 0;  // tiles of a unit
          for (index_t unit = 0; unit < slice.unit_count; ++unit)
            most = std::max(most, slice.unit(unit).tiles);
          const index_t blocks = most > Near ? blocks_for(Near, block_threads) : 1;
          launch_body(ex, slice, NoPackets{},
                      JoinBody<Statistic, Near>{scratch, stride, blocks, scales, bad,
                                                units.whole ? all : nullptr, first, last},
                      std::max(index_t{1}, slice.unit_count * blocks));
        }
        first = false;
      });
}

}  // namespace detail

template <class Statistic, GridExecutor E>
index_t reduction_scratch(E, const Range& range, Units units) {
  return (Statistic::width + 3) * (detail::tiles_of(range, units.whole ? Units{} : units) + 1);
}

template <class Statistic, GridExecutor E, class Incoming, class F, class... Q>
void reduce(E ex, const Range& range, Units units, Mask<typename E::memory> mask, Incoming incoming, F f,
            out<E> scratch, out<E, typename Statistic::Scale> scales, std::uint32_t* bad,
            const detail::CodeSamples<Q>&... also) {
  detail::reduce_tiles<Statistic, false>(ex, range, units, mask, incoming, f, nullptr, scratch.data(),
                                         scales.data(), bad, detail::CodeRows<Q>{also.codes, also.begin}...);
}

template <class Statistic, GridExecutor E, class Incoming, class F>
void store(E ex, const Range& range, Incoming incoming, F f, std::byte* wire, out<E> scratch,
           out<E, typename Statistic::Scale> scale, std::uint32_t* bad) {
  detail::reduce_tiles<Statistic, true>(ex, range, Units{0, true}, NoMask{}, incoming, f, wire,
                                        scratch.data(), scale.data(), bad);
}

/// Writes the values of `store` without a statistic, for several packets at their ranges' places after `wire`.
template <class Statistic, GridExecutor E, class Incoming, class F>
void store_values(E ex, detail::PlacedRanges ranges, Incoming incoming, F f, std::byte* wire) {
  detail::for_each_slice<detail::Arriving<Incoming, 0>::bits, 32>(
      ranges, Units{0, true}, 0, [&](const detail::Slice& slice, bool) {
        detail::launch_reduce<false, Statistic, true>(ex, slice, NoMask{}, incoming, f, nullptr, 0, nullptr,
                                                      nullptr, wire, detail::SumOnly{});
      });
}

}  // namespace terse
