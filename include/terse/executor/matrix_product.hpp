// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/executor/matrix.hpp"

// Products of two matrices, on the host; device/verbs/product.hpp has those of a device. Their sums have one shape
// everywhere:
//
//     sum_k l(i, k) r(k, j)    blocks of 256 k; in a block one accumulator, which starts at 0 and takes each product in
//                              the order of k, in two roundings; then the blocks' sums in order
//
// so that a product of transposed matrices, in reverse order, has the same bits.

namespace terse {

/// A view of a matrix, whose element (i, j) is data[i * row_step + j * column_step].
struct MatrixView {
  const float* data = nullptr;  ///< element (0, 0)
  index_t rows = 0;             ///< number of rows
  index_t columns = 0;          ///< number of columns
  index_t row_step = 0;         ///< from a row to the next, in elements
  index_t column_step = 1;      ///< from a column to the next, in elements

  /// Returns a view of a row-major matrix without gaps.
  static MatrixView of(const float* data, MatrixShape shape) {
    return {data, shape.rows, shape.columns, shape.columns, 1};
  }
  TERSE_HD MatrixView transposed() const { return {data, columns, rows, column_step, row_step}; }
};

/// The arguments of `multiply_into`, which computes scale left right + added_scale added + diagonal I. `added` is
/// row-major and has the product's shape. If it is null, that term is omitted. If the product is symmetric, except
/// for rounding, it is computed below the diagonal and copied above.
struct MatrixProduct {
  MatrixView left, right;
  float scale = 1;               ///< factor of left right
  const float* added = nullptr;  ///< nullptr: none
  float added_scale = 0;         ///< factor of added
  float diagonal = 0;            ///< added to each element of the diagonal
  bool symmetric = false;        ///< true if half of the product is enough
};

TERSE_NUMERICS_BEGIN

namespace detail {

/// The number of values of k in a block of sums.
inline constexpr index_t product_block = 256;

/// Returns scale total + added_scale added.
TERSE_HD TERSE_INLINE float product_element(const MatrixProduct& product, float total, index_t place) {
  const float scaled = product.scale * total;
  return product.added == nullptr ? scaled : scaled + product.added_scale * product.added[place];
}

// As in matrix.hpp: separate functions for each instruction set. A tile's sums fill most of its registers.
#if defined(__AVX512BW__)
inline namespace avx512 {
inline constexpr int tile_rows = 8, tile_strips = 3;
#elif defined(__AVX2__)
inline namespace avx2 {
inline constexpr int tile_rows = 6, tile_strips = 1;
#elif defined(__SSE2__)
inline namespace sse2 {
inline constexpr int tile_rows = 2, tile_strips = 1;
#else
inline namespace portable {
inline constexpr int tile_rows = 2, tile_strips = 1;
#endif

/// The panels of products. A panel of the right matrix stays in the outer cache, one of the left in the inner cache,
/// and a strip of tile_columns in the first-level cache.
struct ProductPanels {
  static constexpr index_t tile_columns = tile_strips * Strip::width;
  static constexpr index_t rows = 12 * tile_rows, columns = 10 * tile_columns;
  static constexpr index_t scratch = (rows + columns) * product_block;
};

/// Packs rows [begin, end) of `m`, Width at a time, column after column, which is the order in which tiles read
/// them. Missing rows are 0.
template <index_t Width>
inline void pack_panel(const MatrixView& m, index_t begin, index_t end, index_t first, index_t count,
                       float* to) {
  for (index_t i = begin; i < end; i += Width, to += Width * count) {
    const index_t held = std::min(Width, end - i);
    const float* from = m.data + i * m.row_step + first * m.column_step;
    if (m.row_step == 1) {
      for (index_t k = 0; k < count; ++k, from += m.column_step) {
        for (index_t l = 0; l < held; ++l) to[k * Width + l] = from[l];
        for (index_t l = held; l < Width; ++l) to[k * Width + l] = 0;
      }
    } else {
      for (index_t l = 0; l < Width; ++l)
        for (index_t k = 0; k < count; ++k)
          to[k * Width + l] = l < held ? from[l * m.row_step + k * m.column_step] : 0.0F;
    }
  }
}

/// Computes the sums of a tile over one block of k. A separate function: see Product::compute.
TERSE_NO_INLINE inline void sum_tile(const float* left, const float* right, index_t count, float* sums) {
  Strip total[tile_rows][tile_strips];
  TERSE_UNROLL
  for (int i = 0; i < tile_rows; ++i) TERSE_UNROLL
  for (int s = 0; s < tile_strips; ++s) total[i][s] = Strip::of(0);
  for (index_t k = 0; k < count; ++k, left += tile_rows, right += ProductPanels::tile_columns) {
    Strip r[tile_strips];
    TERSE_UNROLL
    for (int s = 0; s < tile_strips; ++s) r[s] = Strip::load(right + s * Strip::width);
    TERSE_UNROLL
    for (int i = 0; i < tile_rows; ++i) {
      const Strip l = Strip::of(left[i]);
      TERSE_UNROLL
      for (int s = 0; s < tile_strips; ++s) total[i][s].add_product(l, r[s]);
    }
  }
  TERSE_UNROLL
  for (int i = 0; i < tile_rows; ++i) TERSE_UNROLL
  for (int s = 0; s < tile_strips; ++s)
    total[i][s].store(sums + i * ProductPanels::tile_columns + s * Strip::width);
}

/// The elements of a product that belong to a tile.
struct ProductTile {
  index_t row, column, rows, columns;
};

/// Adds a block's sums to the previous ones; the last block completes the product's elements.
inline void take_tile(const MatrixProduct& product, const ProductTile& tile, const float* sums, bool first,
                      bool last, float* to) {
  for (index_t i = 0; i < tile.rows; ++i) {
    const index_t place = (tile.row + i) * product.right.columns + tile.column;
    const float* const block = sums + i * ProductPanels::tile_columns;
    TERSE_LANES
    for (index_t j = 0; j < tile.columns; ++j) {
      const float total = first ? block[j] : to[place + j] + block[j];
      to[place + j] = last ? product_element(product, total, place + j) : total;
    }
    const index_t on_diagonal = tile.row + i - tile.column;
    if (last && product.diagonal != 0 && on_diagonal >= 0 && on_diagonal < tile.columns)
      to[place + on_diagonal] += product.diagonal;
  }
}

inline void mirror(float* matrix, index_t size) {
  constexpr index_t block = 32;
  for (index_t top = 0; top < size; top += block)
    for (index_t left = top; left < size; left += block)
      for (index_t i = top; i < std::min(top + block, size); ++i)
        for (index_t j = std::max(i + 1, left); j < std::min(left + block, size); ++j)
          matrix[i * size + j] = matrix[j * size + i];
}

}  // inline namespace of the instruction set

/// Returns the floats of scratch that a product on the host needs.
inline index_t product_scratch(executor::host) { return ProductPanels::scratch; }
/// Returns 0: a grid's kernels have shared memory.
template <GridExecutor E>
index_t product_scratch(E) {
  return 0;
}

}  // namespace detail

/// Computes to = scale left right + added_scale added + diagonal I, row-major; `to` must not overlap the inputs. Work:
/// rows * columns inner products, or half of them if it is symmetric.
inline void multiply_into(executor::host, const MatrixProduct& product, float* to, float* scratch) {
  using Panels = detail::ProductPanels;
  const MatrixView &left = product.left, right = product.right.transposed();
  const index_t rows = left.rows, columns = right.rows, inner = left.columns;
  float* const left_panel = scratch;
  float* const right_panel = scratch + Panels::rows * detail::product_block;
  alignas(64) float sums[detail::tile_rows * Panels::tile_columns];
  for (index_t column = 0; column < columns; column += Panels::columns) {
    const index_t last_column = std::min(columns, column + Panels::columns);
    for (index_t k = 0; k < inner; k += detail::product_block) {
      const index_t count = std::min(detail::product_block, inner - k);
      const bool first = k == 0, last = k + count == inner;
      detail::pack_panel<Panels::tile_columns>(right, column, last_column, k, count, right_panel);
      for (index_t row = 0; row < rows; row += Panels::rows) {
        const index_t last_row = std::min(rows, row + Panels::rows);
        if (product.symmetric && last_row <= column) continue;
        detail::pack_panel<detail::tile_rows>(left, row, last_row, k, count, left_panel);
        for (index_t j = column; j < last_column; j += Panels::tile_columns)
          for (index_t i = row; i < last_row; i += detail::tile_rows) {
            const detail::ProductTile tile{i, j, std::min<index_t>(detail::tile_rows, last_row - i),
                                           std::min(Panels::tile_columns, last_column - j)};
            if (product.symmetric && i + tile.rows <= j) continue;
            detail::sum_tile(left_panel + (i - row) * count, right_panel + (j - column) * count, count, sums);
            detail::take_tile(product, tile, sums, first, last, to);
          }
      }
    }
  }
  if (product.symmetric) detail::mirror(to, rows);
}

TERSE_NUMERICS_END

}  // namespace terse
