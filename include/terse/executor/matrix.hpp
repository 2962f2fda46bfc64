// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "terse/executor/host.hpp"

// Products of a matrix with a few vectors, on the host; device/verbs/matrix.hpp has those of a device. Like
// reductions, their sums have one shape everywhere:
//
//     M q    a row's dot product: blocks of 4096 columns; in a block 16 accumulators, column c to
//            accumulator c mod 16, joined by halves; blocks in order. No column: 0
//     M^T p  a column's sum: 8 rows at a time, in order from the first; eights in order
//
// On the host both products read the matrix once for all vectors.

namespace terse {

/// The shape of a row-major matrix without gaps.
struct MatrixShape {
  index_t rows = 0;     ///< the segment's first dimension
  index_t columns = 0;  ///< elements of a row
};

namespace detail {

/// Returns the shape of a segment that has elements, as a matrix: its first dimension by the product of the others.
inline MatrixShape matrix_shape(const Segment& segment) {
  const index_t rows = segment.shape.empty() ? 1 : segment.shape.front();
  return {rows, segment.count / rows};
}

}  // namespace detail

/// Vectors of `count` elements, each at a multiple of 64 elements.
template <class T>
struct Columns {
  T* data = nullptr;  ///< the first vector
  index_t count = 0;  ///< elements of each
  TERSE_HD T* operator[](index_t r) const { return data + r * aligned(count); }
};

TERSE_NUMERICS_BEGIN

namespace detail {

// As with TERSE_INSTRUCTIONS: separate functions for each instruction set.
#if defined(__AVX512BW__)
inline namespace avx512 {
inline constexpr int vector_lanes = 16, vectors_together = 4;
#elif defined(__AVX2__)
inline namespace avx2 {
inline constexpr int vector_lanes = 8, vectors_together = 4;
#elif defined(__SSE2__)
inline namespace sse2 {
inline constexpr int vector_lanes = 4, vectors_together = 2;
#else
inline namespace portable {
inline constexpr int vector_lanes = 4, vectors_together = 2;
#endif

/// Sixteen floats, in as few registers as possible. Compilers don't keep arrays of lanes in registers across the
/// iterations of an outer loop, on which the speed of products depends.
struct Strip {
  static constexpr int width = 16;
  static constexpr int parts = width / vector_lanes;
  typedef float Vector __attribute__((vector_size(4 * vector_lanes)));  // NOLINT: an alias can't express it
  Vector part[parts];

  static TERSE_INLINE Strip of(float x) {
    Strip strip;
    TERSE_UNROLL
    for (int k = 0; k < parts; ++k) strip.part[k] = x - Vector{};
    return strip;
  }
  static TERSE_INLINE Strip load(const float* from) {
    Strip strip;
    TERSE_UNROLL
    for (int k = 0; k < parts; ++k) std::memcpy(&strip.part[k], from + k * vector_lanes, sizeof(Vector));
    return strip;
  }
  TERSE_INLINE void store(float* to) const {
    TERSE_UNROLL
    for (int k = 0; k < parts; ++k) std::memcpy(to + k * vector_lanes, &part[k], sizeof(Vector));
  }
  TERSE_INLINE void add(const Strip& other) {
    TERSE_UNROLL
    for (int k = 0; k < parts; ++k) part[k] += other.part[k];
  }
  /// Adds a b, in two roundings.
  TERSE_INLINE void add_product(const Strip& a, const Strip& b) {
    TERSE_UNROLL
    for (int k = 0; k < parts; ++k) part[k] += a.part[k] * b.part[k];
  }
  /// Returns the sum of the lanes, joined by halves.
  TERSE_INLINE float sum() const {
    float lane[width];
    store(lane);
    for (int half = width / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    return lane[0];
  }
};

/// Computes sum[g] += row . q[g] over one block of columns, for G vectors.
template <int G>
TERSE_INLINE void dot_block(const float* row, index_t count, Columns<const float> q, index_t begin,
                            float* sum) {
  Strip total[static_cast<std::size_t>(G)];
  TERSE_UNROLL
  for (int g = 0; g < G; ++g) total[g] = Strip::of(0);
  const float* vector[static_cast<std::size_t>(G)];
  TERSE_UNROLL
  for (int g = 0; g < G; ++g) vector[g] = q[g] + begin;
  index_t c = 0;
  for (; c + Strip::width <= count; c += Strip::width) {
    __builtin_prefetch(row + c + 512);  // the hardware's prefetching stops at the end of a page
    const Strip x = Strip::load(row + c);
    TERSE_UNROLL
    for (int g = 0; g < G; ++g) total[g].add_product(x, Strip::load(vector[g] + c));
  }
  if (c < count) {
    // After a row's end the next row follows, or no memory.
    TERSE_UNROLL
    for (int g = 0; g < G; ++g) {
      float x[Strip::width] = {}, y[Strip::width] = {};
      for (index_t l = 0; l < count - c; ++l) x[l] = row[c + l], y[l] = vector[g][c + l];
      total[g].add_product(Strip::load(x), Strip::load(y));
    }
  }
  TERSE_UNROLL
  for (int g = 0; g < G; ++g) sum[g] += total[g].sum();
}

/// Computes sum[r] = row . q[r], for R vectors.
template <int R>
inline void dot(const float* row, Columns<const float> q, float* sum) {
  for (int r = 0; r < R; ++r) sum[r] = 0;
  for (index_t begin = 0; begin < q.count; begin += reduction_block) {
    const index_t count = std::min(reduction_block, q.count - begin);
    int r = 0;
    for (; r + vectors_together <= R; r += vectors_together)
      dot_block<vectors_together>(row + begin, count, {q[r], q.count}, begin, sum + r);
    if constexpr (vectors_together == 4 && R % 4 >= 2) {
      dot_block<2>(row + begin, count, {q[r], q.count}, begin, sum + r);
      r += 2;
    }
    if constexpr (R % 2 == 1) dot_block<1>(row + begin, count, {q[r], q.count}, begin, sum + r);
  }
}

inline constexpr int rows_together = 8;

/// Adds to q[g] the sum over eight rows of weight[g] times the row, for G vectors. Missing rows have weight 0.
template <int G>
TERSE_INLINE void add_rows(const float* const (&row)[rows_together], Columns<const float> p, index_t first,
                           index_t rows, Columns<float> q) {
  Strip weight[rows_together][static_cast<std::size_t>(G)];
  TERSE_UNROLL
  for (int b = 0; b < rows_together; ++b) TERSE_UNROLL
  for (int g = 0; g < G; ++g) weight[b][g] = Strip::of(b < rows ? p[g][first + b] : 0.0F);
  float* vector[static_cast<std::size_t>(G)];
  TERSE_UNROLL
  for (int g = 0; g < G; ++g) vector[g] = q[g];
  index_t c = 0;
  for (; c + Strip::width <= q.count; c += Strip::width) {
    Strip total[static_cast<std::size_t>(G)];
    TERSE_UNROLL
    for (int g = 0; g < G; ++g) total[g] = Strip::of(0);
    TERSE_UNROLL
    for (int b = 0; b < rows_together; ++b) {
      const Strip x = Strip::load(row[b] + c);
      TERSE_UNROLL
      for (int g = 0; g < G; ++g) total[g].add_product(x, weight[b][g]);
    }
    TERSE_UNROLL
    for (int g = 0; g < G; ++g) {
      total[g].add(Strip::load(vector[g] + c));
      total[g].store(vector[g] + c);
    }
  }
  for (; c < q.count; ++c) TERSE_UNROLL
  for (int g = 0; g < G; ++g) {
    float total = 0;
    TERSE_UNROLL
    for (int b = 0; b < rows_together; ++b) total += row[b][c] * weight[b][g].part[0][0];
    vector[g][c] = total + vector[g][c];
  }
}

}  // inline namespace of the instruction set
}  // namespace detail

/// Computes p[r] = M q[r] for R vectors. One read of M.
template <int R>
void multiply(executor::host, const float* m, Columns<const float> q, Columns<float> p) {
  float sum[static_cast<std::size_t>(R)];
  for (index_t i = 0; i < p.count; ++i) {
    detail::dot<R>(m + i * q.count, q, sum);
    for (int r = 0; r < R; ++r) p[r][i] = sum[r];
  }
}

/// Computes q[r] = M^T p[r] for R vectors. Reads M once, and writes q once for eight rows.
template <int R>
void multiply_transposed(executor::host, const float* m, Columns<const float> p, Columns<float> q) {
  constexpr int together = detail::vectors_together;
  for (int r = 0; r < R; ++r) std::fill_n(q[r], q.count, 0.0F);
  for (index_t first = 0; first < p.count; first += detail::rows_together) {
    const index_t rows = std::min<index_t>(detail::rows_together, p.count - first);
    const float* row[detail::rows_together];
    for (int b = 0; b < detail::rows_together; ++b) row[b] = m + (b < rows ? first + b : first) * q.count;
    int r = 0;
    for (; r + together <= R; r += together)
      detail::add_rows<together>(row, {p[r], p.count}, first, rows, {q[r], q.count});
    if constexpr (together == 4 && R % 4 >= 2) {
      detail::add_rows<2>(row, {p[r], p.count}, first, rows, {q[r], q.count});
      r += 2;
    }
    if constexpr (R % 2 == 1) detail::add_rows<1>(row, {p[r], p.count}, first, rows, {q[r], q.count});
  }
}

TERSE_NUMERICS_END

}  // namespace terse
