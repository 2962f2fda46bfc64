// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device/verbs/kernels.hpp"
#include "terse/executor/matrix.hpp"

// Products of matrices with a few vectors on a grid executor; see matrix.hpp for their contracts and the shape of their
// sums. If the matrix and its rows are aligned to 16 bytes, each thread loads four neighbouring elements at once.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// Groups of up to four of R vectors; the last vector is repeated if R is not a multiple of four.
template <int R>
struct VectorGroups {
  static constexpr int together = R < 4 ? R : 4, count = (R + together - 1) / together;
  TERSE_HD static int vector(index_t group, int g) {
    const int r = static_cast<int>(group) * together + g;
    return r < R ? r : R - 1;
  }
};

/// Returns elements i to i + 3, and 0 from `end` on.
TERSE_HD inline Quad<float> four_of(const float* from, index_t i, index_t end) {
  Quad<float> four;
  TERSE_UNROLL
  for (int j = 0; j < quad; ++j) four.x[j] = i + j < end ? from[i + j] : 0.0F;
  return four;
}
template <class... Pointers>
bool quads_aligned(index_t row, Pointers... pointers) {
  return row % quad == 0 && (... && (reinterpret_cast<std::uintptr_t>(pointers) % sizeof(Quad<float>) == 0));
}

/// Kernel with four threads per row, each with four of its 16 accumulators, and its next loads in flight while it adds.
template <int R>
struct MultiplyKernel {
  static constexpr Tuning tuning{.threads = 64};
  static constexpr bool cooperative = true;
  using Groups = VectorGroups<R>;
  static constexpr int across = Strip::width / quad, rows = tuning.threads / across;
  static constexpr int ahead = 8;  // loads of a thread
  struct Shared {};
  const float* m;
  Columns<const float> q;
  Columns<float> p;
  bool wide;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    constexpr index_t step = ahead * Strip::width;
    const index_t group = block.index() % Groups::count;
    const int thread = block.thread();
    const index_t row = block.index() / Groups::count * rows + thread / across;
    // Threads without a row repeat the last row's work, since the whole warp must take part below.
    const float* const own = m + (row < p.count ? row : p.count - 1) * q.count;
    float sum[Groups::together] = {};
    for (index_t begin = 0; begin < q.count; begin += reduction_block) {
      const index_t end = begin + reduction_block < q.count ? begin + reduction_block : q.count;
      const index_t whole = wide ? begin + (end - begin) / step * step : begin;
      float total[Groups::together][quad] = {};
      const auto add = [&](const Quad<float>& x, index_t c, auto load) {
        TERSE_UNROLL
        for (int g = 0; g < Groups::together; ++g) {
          const Quad<float> y = load(q[Groups::vector(group, g)], c);
          TERSE_UNROLL
          for (int j = 0; j < quad; ++j) total[g][j] += x.x[j] * y.x[j];
        }
      };
      index_t c = begin + thread % across * quad;
      Quad<float> now[ahead], next[ahead];
      if (c < whole) load_ahead(own + c, now);
      for (; c < whole; c += step) {
        load_ahead(own + (c + step < whole ? c + step : c), next);
        TERSE_UNROLL
        for (int k = 0; k < ahead; ++k)
          add(now[k], c + k * Strip::width, [](const float* from, index_t i) { return load_quad(from + i); });
        TERSE_UNROLL
        for (int k = 0; k < ahead; ++k) now[k] = next[k];
      }
      TERSE_ROLLED
      for (; c < end; c += Strip::width)
        add(four_of(own, c, end), c, [=](const float* from, index_t i) { return four_of(from, i, end); });
      for (int g = 0; g < Groups::together; ++g) sum[g] += joined(block, total[g]);
    }
    if (thread % across == 0 && row < p.count)
      for (int g = 0; g < Groups::together; ++g) p[Groups::vector(group, g)][row] = sum[g];
  }

 private:
  TERSE_HD static void load_ahead(const float* from, Quad<float> (&to)[ahead]) {
    TERSE_UNROLL
    for (int k = 0; k < ahead; ++k) to[k] = load_quad(from + k * Strip::width);
  }
  /// Joins by halves: the accumulators at distances 8 and 4 are in the threads at distances two and one. The first
  /// thread of each row gets the sum.
  template <class Block>
  TERSE_HD static float joined(Block& block, float (&total)[quad]) {
    for (int half = across / 2; half > 0; half /= 2)
      for (float& one : total)
        one += std::bit_cast<float>(
            block.shuffle(std::bit_cast<std::uint32_t>(one), (block.thread() + half) % 32));
    return (total[0] + total[2]) + (total[1] + total[3]);
  }
};

/// Kernel with some columns per block. Each thread sums eight rows of four columns; then one thread per column and
/// vector adds these sums in order. With two buffers, the other threads continue meanwhile.
template <int R>
struct MultiplyTransposedKernel {
  static constexpr bool cooperative = true;
  using Groups = VectorGroups<R>;
  static constexpr int sums = block_threads * quad;
  struct alignas(16) Shared {
    // Padded, so that two vectors use different banks.
    float eight[2][Groups::together][sums + 16];
  };
  const float* m;
  Columns<const float> p;
  Columns<float> q;
  int across;  // threads across, with four columns each; the other threads have other rows
  bool wide;

  /// Returns the threads across. They are few, down to 16 columns, so that there are many blocks, but a block has no
  /// more rows at a time than the matrix.
  static int threads_across(index_t rows) {
    int across = 4;
    while (across < block_threads / quad && block_threads / across * rows_together > rows) across *= 2;
    return across;
  }

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int thread = block.thread(), columns = across * quad, eights = block_threads / across;
    const index_t group = block.index() % Groups::count, left = block.index() / Groups::count * columns;
    const int vectors_apart = block_threads / columns, lane = thread % columns,
              first_vector = thread / columns;
    float sum[Groups::together] = {};
    int turn = 0;
    for (index_t first = 0; first < p.count; first += eights * rows_together, turn = 1 - turn) {
      float total[Groups::together][quad] = {};
      add_eight(group, first + thread / across * rows_together, left + thread % across * quad, total);
      for (int g = 0; g < Groups::together; ++g) {
        Quad<float> four;
        for (int j = 0; j < quad; ++j) four.x[j] = total[g][j];
        store_quad(shared.eight[turn][g] + thread * quad, four);
      }
      block.sync();
      TERSE_UNROLL
      for (int k = 0; k < Groups::together; ++k) {
        const int g = first_vector + k * vectors_apart;
        if (g >= Groups::together) break;
        const float* const eight = shared.eight[turn][g] + lane;
        // Sums of rows that don't exist are 0.
        for (int e = 0; e < eights; e += quad) {
          float some[quad];
          TERSE_UNROLL
          for (int n = 0; n < quad; ++n) some[n] = eight[(e + n) * columns];
          TERSE_UNROLL
          for (int n = 0; n < quad; ++n) sum[k] = some[n] + sum[k];
        }
      }
    }
    if (left + lane >= q.count) return;
    TERSE_UNROLL
    for (int k = 0; k < Groups::together; ++k)
      if (const int g = first_vector + k * vectors_apart; g < Groups::together)
        q[Groups::vector(group, g)][left + lane] = sum[k];
  }

 private:
  /// Adds rows `begin` to `begin` + 7 of four columns.
  TERSE_HD void add_eight(index_t group, index_t begin, index_t column,
                          float (&total)[Groups::together][quad]) const {
    if (column >= q.count) return;
    const auto add = [&](int g, const Quad<float>& x, float weight) {
      TERSE_UNROLL
      for (int j = 0; j < quad; ++j) total[g][j] += x.x[j] * weight;
    };
    if (wide && begin + rows_together <= p.count) {
      Quad<float> x[rows_together];
      TERSE_UNROLL
      for (int r = 0; r < rows_together; ++r) x[r] = load_quad(m + (begin + r) * q.count + column);
      TERSE_UNROLL
      for (int g = 0; g < Groups::together; ++g) {
        const float* const weights = p[Groups::vector(group, g)] + begin;
        TERSE_UNROLL
        for (int r = 0; r < rows_together; r += quad) {
          const Quad<float> four = load_quad(weights + r);
          TERSE_UNROLL
          for (int n = 0; n < quad; ++n) add(g, x[r + n], four.x[n]);
        }
      }
      return;
    }
    const index_t end = begin + rows_together < p.count ? begin + rows_together : p.count;
    TERSE_ROLLED
    for (index_t row = begin; row < end; ++row) {
      const Quad<float> x = four_of(m + row * q.count, column, q.count);
      for (int g = 0; g < Groups::together; ++g) add(g, x, p[Groups::vector(group, g)][row]);
    }
  }
};

TERSE_NUMERICS_END

}  // namespace detail

/// Computes the same bits as the host's verb of the same name, as multiply_transposed does. Reads M once for every
/// four vectors.
template <int R, GridExecutor E>
void multiply(E ex, const float* m, Columns<const float> q, Columns<float> p) {
  using Kernel = detail::MultiplyKernel<R>;
  if (p.count > 0)
    ex.launch(Kernel{m, q, p, detail::quads_aligned(q.count, m, q.data)},
              detail::blocks_for(p.count, Kernel::rows) * Kernel::Groups::count);
}

template <int R, GridExecutor E>
void multiply_transposed(E ex, const float* m, Columns<const float> p, Columns<float> q) {
  using Kernel = detail::MultiplyTransposedKernel<R>;
  if (q.count == 0) return;
  const int across = Kernel::threads_across(p.count);
  ex.launch(Kernel{m, p, q, across, detail::quads_aligned(q.count, m, p.data)},
            detail::blocks_for(q.count, across * detail::quad) * Kernel::Groups::count);
}

}  // namespace terse
