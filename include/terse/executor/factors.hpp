// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "terse/executor/matrix.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Multiplies a vector by the power of two that brings its largest magnitude into [2^exponent,
/// 2^(exponent + 1)); exact but for what becomes denormal. Says whether there is anything but 0.
inline bool scale_to(executor::host, float* x, index_t count, int exponent) {
  std::uint32_t largest = 0;
  for (index_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU);
  const int power = std::clamp(exponent - (static_cast<int>(largest >> 23) - 127), -126, 127);
  const float factor = std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
  TERSE_LANES
  for (index_t i = 0; i < count; ++i) x[i] *= factor;
  return largest != 0;
}

/// The part of a vector's length that must be left, once all before it are taken out of it, for it to count
/// as independent of them: a few roundings.
inline constexpr float least_remainder = 0x1p-20F;

/// Modified Gram-Schmidt from the first vector to the last, each twice, so that also what nearly depends on
/// those before it comes out orthogonal. A dependent vector, or 0, becomes 0, and lost[r] becomes 1.
template <int R>
void orthonormalize(executor::host ex, Columns<float> p, std::uint8_t* lost) {
  for (int r = 0; r < R; ++r) {
    float* x = p[r];
    const Columns<const float> own{x, p.count};
    scale_to(ex, x, p.count, 0);
    float before, along, after;
    detail::dot<1>(x, own, &before);
    for (int pass = 0; pass < 2; ++pass)
      for (int b = 0; b < r; ++b) {
        const float* other = p[b];
        detail::dot<1>(other, own, &along);
        TERSE_LANES
        for (index_t i = 0; i < p.count; ++i) x[i] -= along * other[i];
      }
    detail::dot<1>(x, own, &after);
    const float norm = std::sqrt(after);
    const bool kept = norm > least_remainder * std::sqrt(before);
    lost[r] = kept ? 0 : 1;
    TERSE_LANES
    for (index_t i = 0; i < p.count; ++i) x[i] = kept ? x[i] / norm : 0.0F;
  }
}

namespace detail {

/// A matrix and its factors: where they begin, in the arena and among all left and all right factors.
struct Factored {
  index_t offset = 0;
  MatrixShape shape;
  index_t left = 0, right = 0;
};

/// Where elements from one arena stand in another.
struct Moved {
  index_t offset = 0, there = 0;
};

/// The entry, of a table ordered by offset, for the piece that begins at `offset`.
template <class Entry>
const Entry& find(const Entry* table, index_t size, index_t offset) {
  index_t low = 0;
  while (size > 1) {
    const index_t half = size / 2;
    if (table[low + half].offset <= offset) low += half;
    size -= half;
  }
  return table[low];
}

/// Calls f(piece, i, keep, element) with the elements of sum_r left[r] right[r]^T, summed in the order of r.
template <int R, class F>
struct Product {
  const Factored* matrices;
  index_t count;
  const float* all_left;
  const float* all_right;
  F f;

  // Of the piece and the block under way.
  Columns<const float> left{}, right{};
  index_t begin = 0, end = 0, first = 0;
  float value[lanes + Strip::width] = {};

  void enter(const Piece& piece) {
    const Factored& matrix = find(matrices, count, piece.offset);
    left = {all_left + matrix.left, matrix.shape.rows};
    right = {all_right + matrix.right, matrix.shape.columns};
    begin = piece.offset;
    end = piece.offset + piece.count;
    terse::enter(f, piece);
  }
  void enter_block(index_t i) {
    compute(i);
    detail::enter_block(f, i);
  }
  // In a function of its own: g++ contracts what it inlines into a caller outside TERSE_NUMERICS.
  __attribute__((noinline)) void compute(index_t i) {
    first = i;
    const index_t stop = std::min<index_t>(lanes, end - i);
    index_t row = (i - begin) / right.count, column = (i - begin) % right.count;
    for (index_t l = 0; l < stop; ++row, column = 0) {
      const index_t run = std::min(stop - l, right.count - column);
      // What is read behind a factor belongs to no element, and is written over or not read again.
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
  TERSE_INLINE void leave_block(index_t i, int size) { detail::leave_block(f, i, size); }
  TERSE_INLINE void operator()(const Piece& piece, index_t i, bool keep) const {
    f(piece, i, keep, value[i - first]);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
