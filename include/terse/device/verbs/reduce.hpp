// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/ones.hpp"
#include "terse/device/verbs/few_reduce.hpp"
#include "terse/device/verbs/kernels.hpp"

// Reductions of a grid executor: single tiles, then the tiles of each unit, then the pieces of a whole range.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// Kernel that computes the partial results of tiles, component after component: [c * tiles of the range + tile]. The
/// statistic's components are followed by the count of values that are not finite and, as an integer, the count of
/// elements kept.
template <class Statistic, bool Store, class Space, class Incoming, class F>
struct ReduceKernel {
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  struct Shared {
    float lane[static_cast<std::size_t>(width)][block_threads];
  };
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;
  float* partial;
  index_t stride;
  std::byte* wire;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t number = tile_number(block);
    const int thread = block.thread(), lane = thread % lanes;
    float total[static_cast<std::size_t>(width)];
    for (int c = 0; c < width; ++c) total[c] = initial_component<Statistic>(c);
    int kept = 0;  // all threads of a tile count the same
    if (number < slice.tiles) {
      const Tile tile = slice.tile(number);
      F f = f_;
      enter(f, tile.piece);
      for (index_t b = tile.begin; b < tile.end; b += lanes) {
        const std::uint64_t word = mask.word(tile.piece.offset + b);
        const bool live = b + lane < tile.end, keep = (word >> lane & 1) != 0;
        kept += ones_in(tile.end - b < lanes ? word & ((std::uint64_t{1} << (tile.end - b)) - 1) : word);
        if (live) {
          const Sample sample = incoming.call(f, tile, b, lane, keep);
          if constexpr (Store) store_aligned(wire + tile.going + 4 * (b + lane), sample.value);
          float term[Statistic::width];
          Statistic::terms(sample.value, term);
          keep_terms_if<Statistic>(keep, term);
          join_terms<Statistic>(total, 1, term, 1);
          total[Statistic::width] += sample.bad;
        } else if (Store && b + lane == tile.piece.count && tile.piece.count % 2 != 0) {
          store_aligned(wire + tile.going + 4 * (b + lane), 0.0F);  // pads the piece to 8 bytes
        }
      }
    }
    if (Store && partial == nullptr) return;  // only the stored values are needed
    for (int c = 0; c < width; ++c) shared.lane[c][thread] = total[c];
    block.sync();
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane < half)
        join_results<Statistic>(&shared.lane[0][thread], block_threads, &shared.lane[0][thread + half],
                                block_threads);
      block.sync();
    }
    if (lane != 0 || number >= slice.tiles) return;
    for (int c = 0; c < width; ++c) partial[c * stride + slice.first_tile + number] = shared.lane[c][thread];
    partial[width * stride + slice.first_tile + number] = std::bit_cast<float>(kept);
  }
};

/// Stores the count of a long piece in place of the counts of its first two tiles, 32 bits each.
TERSE_HD inline void put_count(float* at, index_t tiles, index_t count) {
  at[0] = std::bit_cast<float>(static_cast<std::uint32_t>(count));
  if (tiles > 1) at[1] = std::bit_cast<float>(static_cast<std::uint32_t>(count >> 32));
}
TERSE_HD inline index_t get_count(const float* at, index_t tiles) {
  const std::uint64_t high = tiles > 1 ? std::bit_cast<std::uint32_t>(at[1]) : 0;
  return static_cast<index_t>(std::bit_cast<std::uint32_t>(at[0]) | high << 32);
}

/// Kernel for the first halvings in units of more than `Near` tiles, by many blocks: as long as the halves are
/// multiples of `Near`, a power of two, only tiles of the same remainder are joined.
template <class Statistic, index_t Near>
struct JoinFarKernel {
  static constexpr bool cooperative = false;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  index_t number;  // of the unit in the slice
  float* partial;
  index_t stride;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const Slice::Unit unit = slice.unit(number);
    const index_t own = block.index() * block_threads + block.thread();
    if (own >= Near) return;
    index_t half = Near;
    while (2 * half < unit.tiles) half *= 2;
    for (; half >= Near; half /= 2)
      for (index_t t = own; t < half && t + half < unit.tiles; t += Near) {
        float *const at = partial + unit.first_tile + t, *const kept = at + width * stride;
        join_results<Statistic>(at, stride, at + half, stride);
        *kept = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*kept) +
                                     std::bit_cast<std::uint32_t>(kept[half]));
      }
  }
};

/// Kernel that joins the partial results of each unit by halves into those of its first tile, one block of threads per
/// unit. Finishes them, unless the whole range is one unit.
template <class Statistic, index_t Near>
struct JoinKernel {
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  float* partial;
  index_t stride;
  typename Statistic::Scale* scales;  // nullptr: not to be finished here
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    Slice::Unit unit = slice.unit(block.index());
    if (unit.tiles > Near) unit.tiles = Near;
    const int thread = block.thread();
    std::uint64_t kept = 0;
    for (index_t t = thread; t < unit.tiles; t += block_threads)
      kept += std::bit_cast<std::uint32_t>(partial[width * stride + unit.first_tile + t]);
    index_t half = unit.tiles > 1 ? 1 : 0;
    while (half > 0 && 2 * half < unit.tiles) half *= 2;
    for (; half > 0; half /= 2) {
      for (index_t t = thread; t < half && t + half < unit.tiles; t += block_threads) {
        float* const own = partial + unit.first_tile + t;
        join_results<Statistic>(own, stride, own + half, stride);
      }
      block.sync();
    }
    if (unit.tiles > 1) kept = block.sum(kept);
    if (thread != 0) return;
    if (scales != nullptr) {
      float totals[static_cast<std::size_t>(width)];
      for (int c = 0; c < width; ++c) totals[c] = partial[c * stride + unit.first_tile];
      scales[slice.first_unit + block.index()] =
          finish_unit<Statistic>(totals, static_cast<index_t>(kept), bad);
    } else {
      put_count(partial + width * stride + unit.first_tile, unit.tiles, static_cast<index_t>(kept));
    }
  }
};

/// Kernel that finishes units no longer than a tile, one thread per unit.
template <class Statistic>
struct FinishKernel {
  static constexpr bool cooperative = false;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  const float* partial;
  index_t stride;
  typename Statistic::Scale* scales;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t number = block.index() * block_threads + block.thread();
    if (number >= slice.unit_count) return;
    const Slice::Unit unit = slice.unit(number);
    float totals[static_cast<std::size_t>(width)];
    for (int c = 0; c < width; ++c) totals[c] = partial[c * stride + unit.first_tile];
    const auto kept = std::bit_cast<std::uint32_t>(partial[width * stride + unit.first_tile]);
    scales[slice.first_unit + number] = finish_unit<Statistic>(totals, kept, bad);
  }
};

/// Kernel that joins the pieces of a whole-range unit in their order. One thread: there are as many additions as
/// pieces.
template <class Statistic>
struct JoinPiecesKernel {
  static constexpr bool cooperative = false;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  const float* partial;
  index_t stride;
  float* all;  // the totals so far, and the count as two halves
  bool first, last;
  typename Statistic::Scale* scale;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.index() != 0 || block.thread() != 0) return;
    float totals[static_cast<std::size_t>(width)];
    index_t kept = first ? 0 : get_count(all + width, 2);
    for (int c = 0; c < width; ++c) totals[c] = first ? initial_component<Statistic>(c) : all[c];
    for (int e = 0; e < slice.count; ++e) {
      const index_t tile = slice.entries[e].first_tile;
      join_results<Statistic>(totals, 1, partial + tile, stride);
      kept += get_count(partial + width * stride + tile, Slice::tiles_in(slice.entries[e].piece.count));
    }
    if (last) {
      *scale = finish_unit<Statistic>(totals, kept, bad);
      return;
    }
    for (int c = 0; c < width; ++c) all[c] = totals[c];
    put_count(all + width, 2, kept);
  }
};

TERSE_NUMERICS_END

/// Launches the kernel for the partial results of a slice's tiles.
template <class Statistic, bool Store, GridExecutor E, class Source, class F>
void launch_reduce(E ex, const Slice& slice, Mask<typename E::memory> mask, const Source& arriving,
                   const F& f, float* partial, index_t stride, std::byte* wire) {
  using Space = typename E::memory;
  constexpr bool wide = RunsWide<Source, F>;
  bool aligned = false;
  if constexpr (wide) aligned = streams_aligned(f);
  if (partial != nullptr && slice.has_few_tiles(tuning_of<E>().few_tiles)) {
    ex.launch(ReduceFewKernel<Statistic, Store, Space, Source, F>{slice, mask, arriving, f, partial, stride,
                                                                  wire, aligned},
              slice.tiles);
  } else if constexpr (wide) {
    const int halvings = partial == nullptr ? slice.halvings() : 0;
    launch_wide(ex, slice,
                ReduceWideKernel<tuning_of<E>(), Statistic, Store, Space, Source, F>{
                    slice, mask, arriving, f, partial, stride, wire, aligned, halvings},
                halvings);
  } else {
    launch_tiles(
        ex, slice,
        ReduceKernel<Statistic, Store, Space, Source, F>{slice, mask, arriving, f, partial, stride, wire});
  }
}

/// Runs the common part of `reduce` and `store`. One block of threads joins up to `Near` tiles of a unit.
template <class Statistic, bool Store, index_t Near = 4096, GridExecutor E, class Incoming, class F>
void reduce_tiles(E ex, const Range& range, Units units, Mask<typename E::memory> mask, Incoming incoming,
                  F f, std::byte* wire, float* scratch, typename Statistic::Scale* scales,
                  std::uint32_t* bad) {
  using Source = Arriving<Incoming>;
  const Source arriving(incoming);
  const index_t stride = tiles_of(range, units.whole ? Units{} : units);
  float* const all = scratch + (Statistic::width + 2) * stride;
  bool first = true;
  for_each_slice<Source::bits, Store ? 32 : 0>(range, units, [&](const Slice& slice, bool last) {
    launch_reduce<Statistic, Store>(ex, slice, mask, arriving, f, scratch, stride, wire);
    const bool small = slice.units.size > 0 && slice.units.size <= reduction_block;
    if (!units.whole && small) {
      if (slice.unit_count > 0)
        ex.launch(FinishKernel<Statistic>{slice, scratch, stride, scales, bad},
                  blocks_for(slice.unit_count, block_threads));
    } else if (slice.unit_count > 0) {
      if (slice.units.size == 0 || Slice::tiles_in(slice.units.size) > Near)
        for (index_t unit = 0; unit < slice.unit_count; ++unit)
          if (slice.unit(unit).tiles > Near)
            ex.launch(JoinFarKernel<Statistic, Near>{slice, unit, scratch, stride},
                      blocks_for(Near, block_threads));
      ex.launch(JoinKernel<Statistic, Near>{slice, scratch, stride, units.whole ? nullptr : scales, bad},
                slice.unit_count);
    }
    if (units.whole)
      ex.launch(JoinPiecesKernel<Statistic>{slice, scratch, stride, all, first, last, scales, bad}, 1);
    first = false;
  });
}

}  // namespace detail

template <class Statistic, GridExecutor E>
index_t reduction_scratch(E, const Range& range, Units units) {
  return (Statistic::width + 2) * detail::tiles_of(range, units.whole ? Units{} : units) + Statistic::width +
         3;
}

template <class Statistic, GridExecutor E, class Incoming, class F>
void reduce(E ex, const Range& range, Units units, Mask<typename E::memory> mask, Incoming incoming, F f,
            out<E> scratch, out<E, typename Statistic::Scale> scales, std::uint32_t* bad) {
  detail::reduce_tiles<Statistic, false>(ex, range, units, mask, incoming, f, nullptr, scratch.data(),
                                         scales.data(), bad);
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
  using Source = detail::Arriving<Incoming>;
  const Source arriving(incoming);
  detail::for_each_slice<Source::bits, 32>(ranges, Units{0, true}, 0, [&](const detail::Slice& slice, bool) {
    detail::launch_reduce<Statistic, true>(ex, slice, NoMask{}, arriving, f, nullptr, 0, wire);
  });
}

}  // namespace terse
