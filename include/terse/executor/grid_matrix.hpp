// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/executor/factors.hpp"
#include "terse/executor/grid.hpp"

// Products of matrices with a few vectors, and what low rank needs beside, on a grid executor; see matrix.hpp and
// factors.hpp for what these do and for the shape of their sums.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// R vectors are taken four at a time; the last ones more than once where R is no multiple.
template <int R>
struct VectorGroups {
  static constexpr int together = R < 4 ? R : 4, count = (R + together - 1) / together;
  TERSE_HD static int vector(index_t group, int g) {
    const int r = static_cast<int>(group) * together + g;
    return r < R ? r : R - 1;
  }
};

/// The sum of a strip, by halves, which it is overwritten with.
TERSE_HD inline float join_strip(float* lane) {
  for (int half = Strip::width / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// 16 threads to a row, each of them one accumulator.
template <int R>
struct MultiplyKernel {
  static constexpr bool cooperative = true;
  using Groups = VectorGroups<R>;
  static constexpr int rows = block_threads / Strip::width;
  struct Shared {
    float lane[Groups::together][block_threads];
  };
  const float* m;
  Columns<const float> q;
  Columns<float> p;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t group = block.index() % Groups::count;
    const int thread = block.thread(), lane = thread % Strip::width;
    const index_t row = block.index() / Groups::count * rows + thread / Strip::width;
    float sum[Groups::together] = {};
    for (index_t begin = 0; begin < q.count; begin += reduction_block) {
      const index_t end = begin + reduction_block < q.count ? begin + reduction_block : q.count;
      float total[Groups::together] = {};
      if (row < p.count)
        for (index_t c = begin + lane; c < end; c += Strip::width) {
          const float x = m[row * q.count + c];
          for (int g = 0; g < Groups::together; ++g) total[g] += x * q[Groups::vector(group, g)][c];
        }
      for (int g = 0; g < Groups::together; ++g) shared.lane[g][thread] = total[g];
      block.sync();
      if (lane == 0)
        for (int g = 0; g < Groups::together; ++g) sum[g] += join_strip(shared.lane[g] + thread);
      block.sync();
    }
    if (lane == 0 && row < p.count)
      for (int g = 0; g < Groups::together; ++g) p[Groups::vector(group, g)][row] = sum[g];
  }
};

/// 32 columns to a block: its warps sum eight rows each, and the first one adds these sums up in order.
template <int R>
struct MultiplyTransposedKernel {
  static constexpr bool cooperative = true;
  using Groups = VectorGroups<R>;
  static constexpr int columns = 32, warps = block_threads / columns;
  struct Shared {
    float eight[Groups::together][block_threads];
  };
  const float* m;
  Columns<const float> p;
  Columns<float> q;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t group = block.index() % Groups::count;
    const int thread = block.thread(), warp = thread / columns;
    const index_t column = block.index() / Groups::count * columns + thread % columns;
    float sum[Groups::together] = {};
    for (index_t first = 0; first < p.count; first += warps * rows_together) {
      const index_t begin = first + warp * rows_together;
      const index_t end = begin + rows_together < p.count ? begin + rows_together : p.count;
      float total[Groups::together] = {};
      if (column < q.count)
        for (index_t row = begin; row < end; ++row) {
          const float x = m[row * q.count + column];
          for (int g = 0; g < Groups::together; ++g) total[g] += x * p[Groups::vector(group, g)][row];
        }
      for (int g = 0; g < Groups::together; ++g) shared.eight[g][thread] = total[g];
      block.sync();
      // Those of rows that don't exist are 0.
      if (warp == 0)
        for (int g = 0; g < Groups::together; ++g)
          for (int w = 0; w < warps; ++w) sum[g] = shared.eight[g][w * columns + thread] + sum[g];
      block.sync();
    }
    if (warp == 0 && column < q.count)
      for (int g = 0; g < Groups::together; ++g) q[Groups::vector(group, g)][column] = sum[g];
  }
};

/// What a block of threads does with one vector.
struct BlockVector {
  static constexpr int strips = block_threads / Strip::width;
  struct Shared {
    float lane[block_threads];
    std::uint32_t largest[block_threads];
  };

  /// All threads get it.
  template <class Block>
  TERSE_HD static float dot(Block& block, Shared& shared, const float* a, const float* b, index_t count) {
    const int thread = block.thread(), strip = thread / Strip::width;
    float sum = 0;
    for (index_t first = 0; first < count; first += strips * reduction_block) {
      const index_t begin = first + strip * reduction_block;
      const index_t end = begin + reduction_block < count ? begin + reduction_block : count;
      float total = 0;
      for (index_t i = begin + thread % Strip::width; i < end; i += Strip::width) total += a[i] * b[i];
      shared.lane[thread] = total;
      block.sync();
      if (thread % Strip::width == 0) join_strip(shared.lane + thread);
      block.sync();
      for (int k = 0; k < strips; ++k) sum += shared.lane[k * Strip::width];  // 0 where there is no block
      block.sync();
    }
    return sum;
  }

  /// See the host's. What it writes is there for all threads.
  template <class Block>
  TERSE_HD static bool scale_to(Block& block, Shared& shared, float* x, index_t count, int exponent) {
    const int thread = block.thread();
    std::uint32_t largest = 0;
    for (index_t i = thread; i < count; i += block_threads) {
      const std::uint32_t size = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU;
      largest = size > largest ? size : largest;
    }
    shared.largest[thread] = largest;
    block.sync();
    if (thread < strips)
      for (int k = thread; k < block_threads; k += strips)
        if (shared.largest[k] > shared.largest[thread]) shared.largest[thread] = shared.largest[k];
    block.sync();
    for (int k = 0; k < strips; ++k) largest = shared.largest[k] > largest ? shared.largest[k] : largest;
    const float factor = power_to(largest, exponent);
    for (index_t i = thread; i < count; i += block_threads) x[i] *= factor;
    block.sync();
    return largest != 0;
  }
};

/// One block of threads to a matrix.
template <int R>
struct OrthonormalizeKernel {
  static constexpr bool cooperative = true;
  using Shared = BlockVector::Shared;
  const Factored* matrices;
  float* left;
  std::uint8_t* lost;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const Factored& matrix = matrices[block.index()];
    const Columns<float> p{left + matrix.left, matrix.shape.rows};
    for (int r = 0; r < R; ++r) {
      float* const x = p[r];
      BlockVector::scale_to(block, shared, x, p.count, 0);
      const float before = BlockVector::dot(block, shared, x, x, p.count);
      for (int pass = 0; pass < 2; ++pass)
        for (int b = 0; b < r; ++b) {
          const float* const other = p[b];
          const float along = BlockVector::dot(block, shared, other, x, p.count);
          for (index_t i = block.thread(); i < p.count; i += block_threads) x[i] -= along * other[i];
          block.sync();
        }
      const float norm = std::sqrt(BlockVector::dot(block, shared, x, x, p.count));
      const bool kept = norm > least_remainder * std::sqrt(before);
      if (block.thread() == 0) lost[block.index() * R + r] = kept ? 0 : 1;
      for (index_t i = block.thread(); i < p.count; i += block_threads) x[i] = kept ? x[i] / norm : 0.0F;
      block.sync();
    }
  }
};

/// One block of threads to a column.
template <int R>
struct PrepareColumnsKernel {
  static constexpr bool cooperative = true;
  using Shared = BlockVector::Shared;
  const Factored* matrices;
  float* right;
  Draw draw;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const Factored& matrix = matrices[block.index() / R];
    const index_t count = matrix.shape.columns, place = matrix.right + block.index() % R * aligned(count);
    const int exponent = safe_exponent(count);
    if (BlockVector::scale_to(block, shared, right + place, count, exponent)) return;  // all threads or none
    for (index_t i = block.thread(); i < count; i += block_threads) right[place + i] = drawn(draw, place + i);
    block.sync();
    BlockVector::scale_to(block, shared, right + place, count, exponent);
  }
};

/// Product, element by element.
template <int R, class F>
struct GridProduct {
  const Factored* matrices;
  index_t count;
  const float* all_left;
  const float* all_right;
  F f;
  Columns<const float> left{}, right{};

  TERSE_HD void enter(const Piece& piece) {
    const Factored& matrix = find(matrices, count, piece.offset);
    left = {all_left + matrix.left, matrix.shape.rows};
    right = {all_right + matrix.right, matrix.shape.columns};
    terse::enter(f, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep) const {
    const index_t row = (i - piece.offset) / right.count, column = (i - piece.offset) % right.count;
    float total = 0;
    for (int r = 0; r < R; ++r) total += left[r][row] * right[r][column];
    f(piece, i, keep, total);
  }
};

TERSE_NUMERICS_END

}  // namespace detail

/// See the host's verbs of the same names for what these do: they give the same bits. They read M once for four
/// vectors.
template <int R, GridExecutor E>
void multiply(E ex, const float* m, Columns<const float> q, Columns<float> p) {
  using Kernel = detail::MultiplyKernel<R>;
  if (p.count > 0)
    ex.launch(Kernel{m, q, p}, detail::blocks_for(p.count, Kernel::rows) * Kernel::Groups::count);
}

template <int R, GridExecutor E>
void multiply_transposed(E ex, const float* m, Columns<const float> p, Columns<float> q) {
  using Kernel = detail::MultiplyTransposedKernel<R>;
  if (q.count > 0)
    ex.launch(Kernel{m, p, q}, detail::blocks_for(q.count, Kernel::columns) * Kernel::Groups::count);
}

template <int R, GridExecutor E>
void orthonormalize(E ex, in<E, detail::Factored> matrices, float* left, std::uint8_t* lost) {
  if (!matrices.empty())
    ex.launch(detail::OrthonormalizeKernel<R>{matrices.data(), left, lost}, matrices.size());
}

template <int R, GridExecutor E>
void prepare_columns(E ex, in<E, detail::Factored> matrices, float* right, const Draw& draw) {
  if (!matrices.empty())
    ex.launch(detail::PrepareColumnsKernel<R>{matrices.data(), right, draw}, R * matrices.size());
}

template <int R, GridExecutor E, class F>
void for_each_product(E ex, const Range& range, Mask<typename E::memory> mask,
                      in<E, detail::Factored> matrices, const float* left, const float* right, F f) {
  for_each(ex, range, mask, NoPackets{},
           detail::GridProduct<R, F>{matrices.data(), matrices.size(), left, right, f});
}

}  // namespace terse
