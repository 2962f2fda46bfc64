// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "terse/device/compressor/cosines.hpp"
#include "terse/executor/placed_ranges.hpp"

// Tiles on a grid executor, one block of threads per tile.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Executor of one of several devices, each with its own memory.
template <class E>
concept SaysDevice = requires(const E& executor) {
  { executor.device } -> std::convertible_to<int>;
};

/// Returns the tables of Cosines<S> in an executor's memory, one copy per device for all holders.
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
    index_t first = 0;    // first tile's number in the slice
    index_t unit = 0;     // first tile's number in the range
    index_t section = 0;  // offset of the first tile's bytes
    int packet = -1;      // its packet; -1: all packets
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

/// Calls use(slice) for slices of the pieces, which have `bytes(tiles)` each; a range's bytes begin at its `going`.
/// With several ranges, each has its own packet.
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

/// Source and target arenas of a transform, tile by tile.
struct TileArenas {
  const float* from;
  index_t from_begin;  // arena index of from[0]
  float* to;
  index_t to_begin;
};

/// Kernel that transforms elements to the numbers to pick from; a tile's numbers are adjacent.
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

/// Kernel that transforms numbers back to elements.
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
