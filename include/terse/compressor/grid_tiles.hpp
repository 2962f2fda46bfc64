// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <variant>

#include "terse/compressor/tile_bases.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/grid_select.hpp"
#include "terse/executor/placed_ranges.hpp"

// Tiles and their cosine transform on a grid executor, one block of threads to a tile, with the host's bits: see
// compressor/tile_bases.hpp and compressor/cosines.hpp for what is computed, in which order.

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

/// Lines of n numbers each, which lie `step` apart; from one line to the next it is `apart`.
struct TileLines {
  int n, step, count, apart;
};

/// What Cosines does to one number after the other, here step by step to all of a tile: level l cuts lines into 2^l parts,
/// the transforms that have come of the first. Each step goes from one of two copies of the tile to the other.
template <int S>
struct CosineSteps {
  static constexpr float root_half = 0.70710678118654752440F;
  CosineTables tables;

  enum class Kind : std::uint8_t { two, back, four };
  /// A DCT-II falls into a DCT-II and a DCT-IV, a DCT-IV into two DCT-IIs, and of an inverse one the first part is inverse.
  TERSE_HD static Kind kind_of(int part, bool inverse) {
    if (inverse && part == 0) return Kind::back;
    int ones = 0;
    for (; part % 2 != 0; part /= 2) ++ones;
    return ones % 2 != 0 ? Kind::four : Kind::two;
  }

  /// x becomes the lines' transforms; `spare` is overwritten.
  template <class Block>
  TERSE_HD void operator()(Block& block, float*& x, float*& spare, const TileLines& lines,
                           bool inverse) const {
    int length = lines.n;
    for (; length % 2 == 0; length /= 2)
      step(block, x, spare, lines, lines.n / 2, [&](const float* from, float* to, int pair) {
        split(from, to, lines.step, length, pair, inverse);
      });
    if (length > 1)
      step(block, x, spare, lines, lines.n,
           [&](const float* from, float* to, int k) { multiply(from, to, lines.step, length, k, inverse); });
    for (length *= 2; length <= lines.n; length *= 2)
      step(block, x, spare, lines, lines.n / 2, [&](const float* from, float* to, int pair) {
        join(from, to, lines.step, length, pair, inverse);
      });
  }

 private:
  template <class Block, class Act>
  TERSE_HD static void step(Block& block, float*& x, float*& spare, const TileLines& lines, int items,
                            const Act& act) {
    for (int e = block.thread(); e < lines.count * items; e += block_threads) {
      const int line = e % lines.count * lines.apart;
      act(x + line, spare + line, e / lines.count);
    }
    block.sync();
    float* const done = spare;
    spare = x;
    x = done;
  }

  TERSE_HD void split(const float* x, float* s, int step, int length, int pair, bool inverse) const {
    const int m = length / 2, part = pair / m, j = pair % m, begin = part * length;
    const Kind kind = kind_of(part, inverse);
    float &low = s[(begin + j) * step], &high = s[(begin + m + j) * step];
    if (kind == Kind::back) {
      low = x[(begin + 2 * j) * step];
      high = x[(begin + 2 * j + 1) * step];
      return;
    }
    const float a = x[(begin + j) * step], b = x[(begin + length - 1 - j) * step];
    if (kind == Kind::two) {
      low = (a + b) * root_half;
      high = (a - b) * root_half;
    } else {
      const float* const turn = tables.four(length) + 2 * j;
      const float sign = j % 2 == 0 ? 1.0F : -1.0F;
      low = turn[0] * a + turn[1] * b;
      high = (sign * turn[0]) * b - (sign * turn[1]) * a;
    }
  }
  TERSE_HD void join(const float* t, float* y, int step, int length, int pair, bool inverse) const {
    const int m = length / 2, part = pair / m, k = pair % m, begin = part * length;
    const Kind kind = kind_of(part, inverse);
    const float a = t[(begin + k) * step], b = t[(begin + m + k) * step];
    if (kind == Kind::two) {
      y[(begin + 2 * k) * step] = a;
      y[(begin + 2 * k + 1) * step] = b;
    } else if (kind == Kind::back) {
      y[(begin + k) * step] = (a + b) * root_half;
      y[(begin + length - 1 - k) * step] = (a - b) * root_half;
    } else if (k == 0) {
      y[begin * step] = a;
      y[(begin + length - 1) * step] = -b;
    } else {
      const float other = t[(begin + length - k) * step];
      y[(begin + 2 * k) * step] = (a + other) * root_half;
      y[(begin + 2 * k - 1) * step] = (a - other) * root_half;
    }
  }
  /// Odd lengths go by their matrix.
  TERSE_HD void multiply(const float* x, float* y, int step, int length, int k, bool inverse) const {
    const int part = k / length, begin = part * length, row = k % length;
    const Kind kind = kind_of(part, inverse);
    const float* const table = kind == Kind::four ? tables.four(length) : tables.waves(length);
    float sum = 0;
    for (int j = 0; j < length; ++j)
      sum += table[kind == Kind::back ? j * length + row : row * length + j] * x[(begin + j) * step];
    y[k * step] = sum;
  }
};

/// A tile in two copies, of rows that lie one number further apart than they are long, so that the threads of a warp that go down
/// meet different banks.
template <int S>
struct TwoTiles {
  float one[std::size_t{S} * (S + 1)], other[std::size_t{S} * (S + 1)];
};
template <class Basis, int S>
using SharedTiles = std::conditional_t<Basis::transforms, TwoTiles<S>, std::monostate>;

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
  using Shared = SharedTiles<Basis, S>;
  TileSlice<S> slice;
  TileArenas arenas;
  CosineTables tables;
  float limit;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const auto& entry = slice.entry_of(block.index());
    const TilePlace place = entry.tiles.place(block.index() - entry.first);
    const int rows = static_cast<int>(place.rows), columns = static_cast<int>(place.columns);
    const float* const from = arenas.from + (place.first - arenas.from_begin);
    float* const to = arenas.to + (entry.tiles.unit(place).offset - arenas.to_begin);
    if constexpr (Basis::transforms) {
      float *x = shared.one, *spare = shared.other;
      const int apart = columns + 1;
      for (int e = block.thread(); e < rows * columns; e += block_threads)
        x[e / columns * apart + e % columns] = from[e / columns * place.stride + e % columns];
      block.sync();
      const CosineSteps<S> transform{tables};
      transform(block, x, spare, {rows, apart, columns, 1}, false);
      transform(block, x, spare, {columns, 1, rows, apart}, false);
      for (int e = block.thread(); e < rows * columns; e += block_threads) {
        const float value = x[e % rows * apart + e / rows];
        const bool good = magnitude(value) <= limit;
        if (!good) atomic_raise(bad);
        to[e] = keep_if(good, value);
      }
    } else {
      for (int e = block.thread(); e < rows * columns; e += block_threads)
        to[e] = from[e / columns * place.stride + e % columns];
    }
  }
};

/// And back.
template <class Basis, int S>
struct InverseTilesKernel {
  static constexpr bool cooperative = true;
  using Shared = SharedTiles<Basis, S>;
  TileSlice<S> slice;
  TileArenas arenas;
  CosineTables tables;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const auto& entry = slice.entry_of(block.index());
    const TilePlace place = entry.tiles.place(block.index() - entry.first);
    const int rows = static_cast<int>(place.rows), columns = static_cast<int>(place.columns);
    const float* const from = arenas.from + (entry.tiles.unit(place).offset - arenas.from_begin);
    float* const to = arenas.to + (place.first - arenas.to_begin);
    if constexpr (Basis::transforms) {
      float *x = shared.one, *spare = shared.other;
      const int apart = columns + 1;
      std::uint32_t own = 0, nonzero = 0;
      for (int e = block.thread(); e < rows * columns; e += block_threads) {
        const float value = from[e];
        own += magnitude_word(value) != 0 ? 1 : 0;
        x[e % rows * apart + e / rows] = value;
      }
      block.exclusive_sum(own, nonzero);
      block.sync();
      const CosineSteps<S> transform{tables};
      using Few = FewWaves<S>;
      if (rows * columns >= Few::least_elements && nonzero <= Few::most) {
        add_waves(block, x, spare, rows, columns);
        float* const done = spare;
        spare = x;
        x = done;
      } else {
        transform(block, x, spare, {columns, 1, rows, apart}, true);
      }
      transform(block, x, spare, {rows, apart, columns, 1}, true);
      for (int e = block.thread(); e < rows * columns; e += block_threads)
        to[e / columns * place.stride + e % columns] = x[e / columns * apart + e % columns];
    } else {
      for (int e = block.thread(); e < rows * columns; e += block_threads)
        to[e / columns * place.stride + e % columns] = from[e];
    }
  }

 private:
  /// Rows as sums of the waves that are there.
  template <class Block>
  TERSE_HD void add_waves(Block& block, const float* x, float* to, int rows, int columns) const {
    const float* const waves = tables.waves(columns);
    const int apart = columns + 1;
    for (int e = block.thread(); e < rows * columns; e += block_threads) {
      const float* const row = x + e / columns * apart;
      const int c = e % columns;
      float sum = 0;
      for (int v = 0; v < columns; ++v)
        if (row[v] != 0) sum += row[v] * waves[v * columns + c];
      to[e / columns * apart + c] = sum;
    }
    block.sync();
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
