// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/compressor/tile_bases.hpp"
#include "terse/core/ones.hpp"
#include "terse/device/verbs/select.hpp"

// The transforms of a tile by a block of threads, in its shared memory, with the host's bits. compressor/tile_bases.hpp
// and compressor/cosines.hpp define the computation and its order.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Divides numbers from 0 to 4096 by `by`, from 1 to 64, in two instructions where a division takes twenty. `inverse`
/// is too large by less than 1, so that the quotient is too large by less than 4096 / 2^18 = 1 / 64.
struct Divisor {
  int by, inverse;

  TERSE_HD explicit Divisor(int number) : by(number), inverse(((1 << 18) + number - 1) / number) {}
  TERSE_HD int quotient(int number) const { return number * inverse >> 18; }
  TERSE_HD int rest(int number) const { return number - quotient(number) * by; }
};

/// Lines of n numbers each: `step` is the distance between numbers of a line, `apart` the distance between lines.
struct TileLines {
  int n, step, count, apart;
};

/// The transform of Cosines, applied step by step to a whole tile. Level l cuts lines into 2^l parts, which are the
/// transforms into which the first one has been split. Each step reads one of two copies of the tile and writes the
/// other.
template <int S>
struct CosineSteps {
  static constexpr float root_half = 0.70710678118654752440F;
  CosineTables tables;

  enum class Kind : std::uint8_t { two, back, four };
  /// Returns the kind of a part. A DCT-II splits into a DCT-II and a DCT-IV, and a DCT-IV into two DCT-IIs. In an
  /// inverse transform, the first part is inverse.
  TERSE_HD static Kind kind_of(int part, bool inverse) {
    if (inverse && part == 0) return Kind::back;
    const int ones = first_one_in(~static_cast<std::uint64_t>(part));
    return ones % 2 != 0 ? Kind::four : Kind::two;
  }

  /// Replaces x by the lines' transforms; `spare` is overwritten.
  template <class Block>
  TERSE_HD void operator()(Block& block, float*& x, float*& spare, const TileLines& lines,
                           bool inverse) const {
    int length = lines.n;
    for (; length % 2 == 0; length /= 2) {
      const Divisor half(length / 2);
      step(block, x, spare, lines, lines.n / 2,
           [&](const float* from, float* to, int pair) { split(from, to, lines.step, half, pair, inverse); });
    }
    if (const Divisor whole(length); length > 1)
      step(block, x, spare, lines, lines.n,
           [&](const float* from, float* to, int k) { multiply(from, to, lines.step, whole, k, inverse); });
    for (; length < lines.n; length *= 2) {
      const Divisor half(length);
      step(block, x, spare, lines, lines.n / 2,
           [&](const float* from, float* to, int pair) { join(from, to, lines.step, half, pair, inverse); });
    }
  }

 private:
  template <class Block, class Act>
  TERSE_HD static void step(Block& block, float*& x, float*& spare, const TileLines& lines, int items,
                            const Act& act) {
    const Divisor by_lines(lines.count);
    TERSE_ROLLED
    for (int e = block.thread(); e < lines.count * items; e += block_threads) {
      const int line = by_lines.rest(e) * lines.apart;
      act(x + line, spare + line, by_lines.quotient(e));
    }
    block.sync();
    float* const done = spare;
    spare = x;
    x = done;
  }

  TERSE_HD void split(const float* x, float* s, int step, const Divisor& half, int pair, bool inverse) const {
    const int m = half.by, length = 2 * m, part = half.quotient(pair), j = half.rest(pair),
              begin = part * length;
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
  TERSE_HD void join(const float* t, float* y, int step, const Divisor& half, int pair, bool inverse) const {
    const int m = half.by, length = 2 * m, part = half.quotient(pair), k = half.rest(pair),
              begin = part * length;
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
  /// Multiplies by the matrix, for odd lengths.
  TERSE_HD void multiply(const float* x, float* y, int step, const Divisor& whole, int k,
                         bool inverse) const {
    const int length = whole.by, part = whole.quotient(k), begin = part * length, row = whole.rest(k);
    const Kind kind = kind_of(part, inverse);
    const float* const table = kind == Kind::four ? tables.four(length) : tables.waves(length);
    float sum = 0;
    for (int j = 0; j < length; ++j)
      sum += table[kind == Kind::back ? j * length + row : row * length + j] * x[(begin + j) * step];
    y[k * step] = sum;
  }
};

/// A tile in a block's shared memory: its elements, or its numbers in a basis's coordinates. It is in one of two copies
/// of `room` floats; the other copy is for transforms only. S = 0 means a row of up to `placed_together` elements.
template <class Basis, int S>
struct TileTransform {
  /// Padding of each row, so that threads of a warp that go down a column use different banks.
  static constexpr int padding = Basis::transforms ? 1 : 0;
  static constexpr std::size_t numbers = S > 0 ? std::size_t{S} * S : std::size_t{placed_together};
  static constexpr std::size_t room = numbers + S * padding;
  static constexpr std::size_t spare_room = Basis::transforms ? room : 1;
  index_t first, stride;  // in the arena
  int rows, columns;
  Divisor by_rows, by_columns;  // of tiles, which are never empty
  CosineTables tables;

  TERSE_HD TileTransform(const TilePlace& place, const CosineTables& all)
      : first(place.first),
        stride(place.stride),
        rows(static_cast<int>(place.rows)),
        columns(static_cast<int>(place.columns)),
        by_rows(S > 0 ? rows : 1),
        by_columns(S > 0 ? columns : 1),
        tables(all) {}

  TERSE_HD int count() const { return rows * columns; }
  /// Returns the arena index of element e, in row-major order.
  TERSE_HD index_t index(int e) const {
    if constexpr (S == 0) return first + e;
    return first + by_columns.quotient(e) * stride + by_columns.rest(e);
  }
  /// Returns the shared-memory offset of element e; `number` returns the offset of number e.
  TERSE_HD int element(int e) const { return e + (Basis::transforms ? by_columns.quotient(e) * padding : 0); }
  TERSE_HD int number(int e) const {
    if constexpr (Basis::transforms) return by_rows.rest(e) * (columns + padding) + by_rows.quotient(e);
    return e;
  }

  /// Returns a number as used for picking; beyond `limit` it counts as not finite, and `good` becomes false.
  TERSE_HD static float within(float limit, float number, bool& good) {
    if constexpr (!Basis::transforms) return number;
    const bool finite = magnitude(number) <= limit;
    good &= finite;
    return keep_if(finite, number);
  }

  /// Transforms elements to numbers. `spare`, the other copy, is overwritten, and the two copies may be swapped. All
  /// threads of the block must call it, after a wait; when it returns, all have finished.
  template <class Block>
  TERSE_HD void forward(Block& block, float*& x, float*& spare) const {
    if constexpr (Basis::transforms) {
      const CosineSteps<S> transform{tables};
      transform(block, x, spare, down(), false);
      transform(block, x, spare, across(), false);
    }
  }
  /// Transforms numbers back to elements.
  template <class Block>
  TERSE_HD void inverse(Block& block, float*& x, float*& spare) const {
    if constexpr (Basis::transforms) {
      using Few = FewWaves<S>;
      std::uint32_t own = 0, nonzero = 0;
      for (int e = block.thread(); e < count(); e += block_threads)
        own += magnitude_word(x[number(e)]) != 0 ? 1U : 0U;
      block.exclusive_sum(own, nonzero);
      const CosineSteps<S> transform{tables};
      if (count() >= Few::least_elements && nonzero <= Few::most)
        add_waves(block, x, spare);
      else
        transform(block, x, spare, across(), true);
      transform(block, x, spare, down(), true);
    }
  }

 private:
  TERSE_HD TileLines down() const { return {rows, columns + padding, columns, 1}; }
  TERSE_HD TileLines across() const { return {columns, 1, rows, columns + padding}; }

  /// Computes rows as sums of their nonzero waves, a row by a warp, which finds them by ballots.
  template <class Block>
  TERSE_HD void add_waves(Block& block, float*& x, float*& spare) const {
    constexpr int warp = 32, turns = (S + warp - 1) / warp;
    const float* const waves = tables.waves(columns);
    const int lane = block.thread() % warp;
    for (int r = block.thread() / warp; r < rows; r += block_threads / warp) {
      const float* const row = x + r * (columns + padding);
      float sum[std::size_t{turns}] = {};
      for (int from = 0; from < columns; from += warp) {
        const bool there = from + lane < columns && row[from + lane] != 0;
        for (std::uint32_t left = block.ballot(there); left != 0; left &= left - 1) {
          const int v = from + first_one_in(left);
          TERSE_UNROLL
          for (int turn = 0; turn < turns; ++turn)
            if (const int c = turn * warp + lane; c < columns) sum[turn] += row[v] * waves[v * columns + c];
        }
      }
      TERSE_UNROLL
      for (int turn = 0; turn < turns; ++turn)
        if (const int c = turn * warp + lane; c < columns) spare[r * (columns + padding) + c] = sum[turn];
    }
    block.sync();
    float* const done = spare;
    spare = x;
    x = done;
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
