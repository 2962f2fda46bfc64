// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "terse/core/draw.hpp"
#include "terse/executor/matrix.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A matrix and its factors: the places where they begin in the arena, among all left factors and among all right
/// factors.
struct Factored {
  index_t offset = 0;
  MatrixShape shape;
  index_t left = 0, right = 0;
};

/// An offset in one arena and the same elements' offset in another.
struct Moved {
  index_t offset = 0, there = 0;
};

/// Returns the entry, of a table ordered by offset, for the piece that begins at `offset`.
template <class Entry>
TERSE_HD const Entry& find(const Entry* table, index_t size, index_t offset) {
  index_t low = 0;
  while (size > 1) {
    const index_t half = size / 2;
    if (table[low + half].offset <= offset) low += half;
    size -= half;
  }
  return table[low];
}

/// Returns the power of two that brings magnitudes of up to `largest`, given as its bits, below 2^(exponent + 1).
TERSE_HD inline float power_to(std::uint32_t largest, int exponent) {
  int power = exponent - (static_cast<int>(largest >> 23) - 127);
  power = power < -126 ? -126 : power > 127 ? 127 : power;
  return std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
}

/// The smallest part of a vector's length that must remain, after the previous vectors are subtracted, for it to count
/// as independent of them: a few roundings.
inline constexpr float least_remainder = 0x1p-20F;

/// Returns an exponent so small that a row times a column of `count` elements can't leave the row's range.
TERSE_HD inline int safe_exponent(index_t count) {
  int bits = 0;
  while (count >> bits != 0) ++bits;
  return -bits - 1;
}

/// Returns a number uniform in [-1, 1).
TERSE_HD inline float drawn(const Draw& draw, index_t place) {
  return static_cast<float>(draw.bits(static_cast<std::uint64_t>(place)) >> 40) * 0x1p-23F - 1;
}

/// Multiplies a vector by the power of two that brings its largest magnitude into [2^exponent, 2^(exponent + 1)); exact
/// except for elements that become denormal. Returns true if an element is not 0.
inline bool scale_to(float* x, index_t count, int exponent) {
  std::uint32_t largest = 0;
  for (index_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU);
  const float factor = power_to(largest, exponent);
  TERSE_LANES
  for (index_t i = 0; i < count; ++i) x[i] *= factor;
  return largest != 0;
}

template <int R>
void orthonormalize(Columns<float> p, std::uint8_t* lost) {
  for (int r = 0; r < R; ++r) {
    float* x = p[r];
    const Columns<const float> own{x, p.count};
    scale_to(x, p.count, 0);
    float before, along, after;
    dot<1>(x, own, &before);
    for (int pass = 0; pass < 2; ++pass)
      for (int b = 0; b < r; ++b) {
        const float* other = p[b];
        dot<1>(other, own, &along);
        TERSE_LANES
        for (index_t i = 0; i < p.count; ++i) x[i] -= along * other[i];
      }
    dot<1>(x, own, &after);
    const float norm = std::sqrt(after);
    const bool kept = norm > least_remainder * std::sqrt(before);
    lost[r] = kept ? 0 : 1;
    TERSE_LANES
    for (index_t i = 0; i < p.count; ++i) x[i] = kept ? x[i] / norm : 0.0F;
  }
}

/// A functor that calls f(piece, i, keep, element) with the elements of sum_r left[r] right[r]^T, summed in the order
/// of r.
template <int R, class F>
struct Product {
  const Factored* matrices;
  index_t count;
  const float* all_left;
  const float* all_right;
  F f;

  // State of the current piece and block.
  Columns<const float> left{}, right{};
  index_t begin = 0, end = 0, first = 0;
  float value[lanes + Strip::width] = {};

  TERSE_HD void enter(const Piece& piece) {
    const Factored& matrix = find(matrices, count, piece.offset);
    left = {all_left + matrix.left, matrix.shape.rows};
    right = {all_right + matrix.right, matrix.shape.columns};
    begin = piece.offset;
    end = piece.offset + piece.count;
    terse::enter(f, piece);
  }
  TERSE_HD void enter_block(index_t i) {
#ifndef __CUDA_ARCH__
    compute(i);
#endif
    detail::enter_block(f, i);
  }
  // A separate function: g++ contracts arithmetic that it inlines into a caller outside TERSE_NUMERICS.
  __attribute__((noinline)) void compute(index_t i) {
    first = i;
    const index_t stop = std::min<index_t>(lanes, end - i);
    index_t row = (i - begin) / right.count, column = (i - begin) % right.count;
    for (index_t l = 0; l < stop; ++row, column = 0) {
      const index_t run = std::min(stop - l, right.count - column);
      // Values read after a factor's end belong to no element; they are overwritten or not read again.
      for (index_t k = 0; k < run; k += Strip::width) {
        Strip total = Strip::of(0);
        TERSE_UNROLL
        for (int r = 0; r < R; ++r)
          total.add_product(Strip::of(left[r][row]), Strip::load(right[r] + column + k));
        total.store(value + l + k);
      }
      l += run;
    }
    opaque(value);
  }
  TERSE_HD TERSE_INLINE void leave_block(index_t i, int size) { detail::leave_block(f, i, size); }
  TERSE_INLINE void operator()(const Piece& piece, index_t i, bool keep) const {
    f(piece, i, keep, value[i - first]);
  }
};

}  // namespace detail

/// Orthonormalizes each matrix's left factor by modified Gram-Schmidt, from the first column to the last. Each column
/// is treated twice, so that nearly dependent columns also become orthogonal. A dependent or zero column becomes 0,
/// and its lost[] 1.
template <int R>
void orthonormalize(executor::host, in<executor::host, detail::Factored> matrices, float* left,
                    std::uint8_t* lost) {
  for (const detail::Factored& matrix : matrices) {
    detail::orthonormalize<R>({left + matrix.left, matrix.shape.rows}, lost);
    lost += R;
  }
}

/// Prepares each column of the right factors for the next product. Scales it so that the row times the column can't
/// leave the row's range; the column's length does not matter. A zero column would stay 0, so it is drawn, uniform in
/// [-1, 1) by its place, equal on all ranks.
template <int R>
void prepare_columns(executor::host, in<executor::host, detail::Factored> matrices, float* right,
                     const Draw& draw) {
  for (const detail::Factored& matrix : matrices)
    for (int r = 0; r < R; ++r) {
      const index_t count = matrix.shape.columns, place = matrix.right + r * aligned(count);
      const int exponent = detail::safe_exponent(count);
      if (detail::scale_to(right + place, count, exponent)) continue;
      for (index_t i = place; i < place + count; ++i) right[i] = detail::drawn(draw, i);
      detail::scale_to(right + place, count, exponent);
    }
}

/// Calls f(piece, i, keep, element) for the elements of sum_r left[r] right[r]^T, for all matrices in `range`. After
/// the end of `right` there must be room for one strip.
template <int R, class F>
void for_each_product(executor::host ex, const Range& range, HostMask mask,
                      in<executor::host, detail::Factored> matrices, const float* left, const float* right,
                      F f) {
  for_each(ex, range, mask, NoPackets{},
           detail::Product<R, F>{matrices.data(), matrices.size(), left, right, f});
}

TERSE_NUMERICS_END

}  // namespace terse
