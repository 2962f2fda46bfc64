// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device/verbs/kernels.hpp"
#include "terse/executor/matrix_product.hpp"

// Products of two matrices on a grid executor; see matrix_product.hpp for their contracts and the shape of their sums.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// Kernel with a square of 64 x 64 elements per block of threads, and of 4 x 4 per thread.
struct ProductKernel {
  static constexpr bool cooperative = true;
  static constexpr int side = 64, own = 4, across = side / own, depth = 16;
  static_assert(across * across == block_threads && side * depth == own * block_threads &&
                product_block % depth == 0);
  struct Shared {
    // Padded by a column, so that threads that store a row of k use different banks.
    float left[depth][side + 1], right[depth][side + 1];
  };
  MatrixProduct product;
  float* to;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const MatrixView right = product.right.transposed();
    const index_t rows = product.left.rows, columns = right.rows, inner = product.left.columns;
    const index_t squares = (columns + side - 1) / side;
    const index_t row = block.index() / squares * side, column = block.index() % squares * side;
    if (product.symmetric && column > row) return;  // all threads
    const int top = block.thread() / across * own, left = block.thread() % across * own;
    float sum[own][own], total[own][own];
    for (index_t k = 0; k < inner; k += product_block) {
      const index_t end = k + product_block < inner ? k + product_block : inner;
      for (int i = 0; i < own; ++i)
        for (int j = 0; j < own; ++j) sum[i][j] = 0;
      for (index_t slab = k; slab < end; slab += depth) {
        bring(block, product.left, row, slab, end, shared.left);
        bring(block, right, column, slab, end, shared.right);
        block.sync();
        const int count = static_cast<int>(end - slab < depth ? end - slab : depth);
        for (int d = 0; d < count; ++d)
          for (int i = 0; i < own; ++i)
            for (int j = 0; j < own; ++j) sum[i][j] += shared.left[d][top + i] * shared.right[d][left + j];
        block.sync();
      }
      for (int i = 0; i < own; ++i)
        for (int j = 0; j < own; ++j) total[i][j] = k == 0 ? sum[i][j] : total[i][j] + sum[i][j];
    }
    for (int i = 0; i < own; ++i)
      for (int j = 0; j < own; ++j) {
        const index_t r = row + top + i, c = column + left + j, place = r * columns + c;
        if (r >= rows || c >= columns || (product.symmetric && c > r)) continue;
        float element = product_element(product, total[i][j], place);
        if (r == c && product.diagonal != 0) element += product.diagonal;
        to[place] = element;
        if (product.symmetric) to[c * columns + r] = element;
      }
  }

 private:
  /// Loads 64 rows of `depth` k, with neighbouring threads on adjacent elements. Elements that don't exist are 0.
  template <class Block>
  TERSE_HD static void bring(const Block& block, const MatrixView& m, index_t first, index_t slab,
                             index_t end, float (&to)[depth][side + 1]) {
    for (int n = 0; n < own; ++n) {
      const int at = n * block_threads + block.thread();
      const bool along_rows = m.row_step == 1;
      const int d = along_rows ? at / side : at % depth, r = along_rows ? at % side : at / depth;
      const bool there = first + r < m.rows && slab + d < end;
      to[d][r] = there ? m.data[(first + r) * m.row_step + (slab + d) * m.column_step] : 0.0F;
    }
  }
};

TERSE_NUMERICS_END

}  // namespace detail

/// Computes the same bits as the host's verb of the same name; uses no scratch.
template <GridExecutor E>
void multiply_into(E ex, const MatrixProduct& product, float* to, float*) {
  using Kernel = detail::ProductKernel;
  ex.launch(Kernel{product, to}, detail::blocks_for(product.left.rows, Kernel::side) *
                                     detail::blocks_for(product.right.columns, Kernel::side));
}

}  // namespace terse
