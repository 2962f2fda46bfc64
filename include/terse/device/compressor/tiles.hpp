// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "terse/device/compressor/cosines.hpp"
#include "terse/executor/placed_ranges.hpp"

// Tiles on a grid executor, one block of threads to a tile.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Executors of which there may be several, with memory of their own each.
template <class E>
concept SaysDevice = requires(const E& executor) {
  { executor.device } -> std::convertible_to<int>;
};

/// The tables of Cosines<S> in an executor's memory, one copy for whoever holds it.
template <int S, GridExecutor E>
std::shared_ptr<const buffer<float, typename E::memory>> shared_tables(const E& executor) {
  using Tables = buffer<float, typename E::memory>;
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<const Tables>> on_device;
  int device = 0;
  if constexpr (SaysDevice<E>) device = executor.device;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const Tables>& known = on_device[device];
  if (auto tables = known.lock()) return tables;
  const auto all = Cosines<S>::instance().tables();
  const auto tables = std::make_shared<Tables>(static_cast<index_t>(all.size()), unwritten);
  upload(view<const float>(all), tables->all());
  known = tables;
  return tables;
}

/// The tiles of some pieces of one or more ranges, as a kernel argument.
template <int S>
struct TileSlice {
  static constexpr int capacity = 64;
  struct Entry {
    PieceTiles<S> tiles;
    index_t first = 0;    // counted through the slice,
    index_t unit = 0;     // and through the range
    index_t section = 0;  // where the bytes of the first one begin
    int packet = -1;      // the one that it is of; -1: all of them
  };
  Entry entries[capacity];
  int count = 0;
  index_t tiles = 0;

  TERSE_HD const Entry& entry_of(index_t tile) const {
    int e = count - 1;
    while (entries[e].first > tile) --e;
    return entries[e];
  }
};

/// use(slice), slice after slice, of pieces that have `bytes(tiles)` each, a range's from where that is going on. Packets go by
/// their ranges, where there are several.
template <int S, class Use, class Bytes>
void for_each_tile_slice(PlacedRanges ranges, Use use, Bytes bytes) {
  TileSlice<S> slice;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    const Range& range = *ranges[r].range;
    index_t unit = 0, section = ranges[r].going;
    for (std::size_t p = 0; p < range.pieces().size(); ++p) {
      if (range.pieces()[p].count == 0) continue;
      const PieceTiles<S> tiles{range.pieces()[p], range.columns(p)};
      slice.entries[slice.count++] = {tiles, slice.tiles, unit, section,
                                      ranges.size() > 1 ? static_cast<int>(r) : -1};
      slice.tiles += tiles.count();
      unit += tiles.count();
      section += bytes(tiles);
      if (slice.count < TileSlice<S>::capacity) continue;
      use(slice);
      slice.count = 0;
      slice.tiles = 0;
    }
  }
  if (slice.count > 0) use(slice);
}
template <int S, class Use>
void for_each_tile_slice(PlacedRanges ranges, Use use) {
  for_each_tile_slice<S>(ranges, use, [](const PieceTiles<S>&) { return index_t{0}; });
}

/// The numbers of one arena that are to be had in another one, from tile to tile.
struct TileArenas {
  const float* from;
  index_t from_begin;  // the arena index of from[0]
  float* to;
  index_t to_begin;
};

/// Elements to the numbers that are picked from, where a tile's lie side by side.
template <class Basis, int S>
struct ForwardTilesKernel {
  static constexpr bool cooperative = true;
  using Shape = TileTransform<Basis, S>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
  };
  TileSlice<S> slice;
  TileArenas arenas;
  CosineTables tables;
  float limit;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const auto& entry = slice.entry_of(block.index());
    const TilePlace place = entry.tiles.place(block.index() - entry.first);
    const Shape shape(place, tables);
    float* const to = arenas.to + (entry.tiles.unit(place).offset - arenas.to_begin);
    float *x = shared.one, *spare = shared.other;
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      x[shape.element(e)] = arenas.from[shape.index(e) - arenas.from_begin];
    block.sync();
    shape.forward(block, x, spare);
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      to[e] = Shape::within(limit, x[shape.number(e)], bad);
  }
};

/// And back.
template <class Basis, int S>
struct InverseTilesKernel {
  static constexpr bool cooperative = true;
  using Shape = TileTransform<Basis, S>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
  };
  TileSlice<S> slice;
  TileArenas arenas;
  CosineTables tables;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const auto& entry = slice.entry_of(block.index());
    const TilePlace place = entry.tiles.place(block.index() - entry.first);
    const Shape shape(place, tables);
    const float* const from = arenas.from + (entry.tiles.unit(place).offset - arenas.from_begin);
    float *x = shared.one, *spare = shared.other;
    for (int e = block.thread(); e < shape.count(); e += block_threads) x[shape.number(e)] = from[e];
    block.sync();
    shape.inverse(block, x, spare);
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      arenas.to[shape.index(e) - arenas.to_begin] = x[shape.element(e)];
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
