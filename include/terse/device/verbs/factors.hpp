// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/device/verbs/matrix.hpp"
#include "terse/executor/factors.hpp"

// Verbs that low rank requires in addition to products, on a grid executor; see factors.hpp for their contracts.

namespace terse {
namespace detail {

TERSE_NUMERICS_BEGIN

/// Vector operations of one block; thread t owns elements t, t + 256, ...
struct BlockVector {
  static constexpr int strips = 8, room = strips * 4 * block_threads;
  struct Shared {
    // Products of up to 8 blocks of a sum's shape, padded so that two blocks use different banks.
    float product[room + strips * Strip::width];
    float sum[strips];
    std::uint32_t largest[block_threads / 32];
  };

  /// A step, x <- factor x - along before (unless `before` is nullptr), and the dot product of x and `other`, or of
  /// x and x.
  struct Step {
    float* x;
    const float* other = nullptr;
    const float* before = nullptr;
    float along = 0;
    float factor = 1;
  };

  /// Takes the step and returns the dot product to all threads; its order of summation is that of a row's product
  /// with a vector. All threads multiply, and 16 of them add each block of 4096 elements.
  template <class Block>
  TERSE_HD static float dot(Block& block, Shared& shared, const Step& step, index_t count) {
    const int thread = block.thread(), strip = thread / Strip::width;
    int together = 1;  // blocks at a time, and `part` elements of each, a multiple of 1024
    while (together < strips && together * reduction_block < count) together *= 2;
    const int part = together < 2 ? static_cast<int>(reduction_block) : room / together;
    float sum = 0;
    for (index_t first = 0; first < count; first += together * reduction_block) {
      float total = 0;
      for (index_t begin = first; begin < first + reduction_block; begin += part) {
        multiply(shared, step, count, begin, together, part, thread);
        block.sync();
        const index_t left = count - begin - strip * reduction_block;
        if (strip < together)
          total = added(shared.product + strip * (part + Strip::width) + thread % Strip::width, total,
                        static_cast<int>(left < part ? left : part) - thread % Strip::width);
        block.sync();
      }
      for (int half = Strip::width / 2; half > 0; half /= 2)
        total +=
            std::bit_cast<float>(block.shuffle(std::bit_cast<std::uint32_t>(total), (thread + half) % 32));
      if (strip < strips && thread % Strip::width == 0) shared.sum[strip] = total;
      block.sync();
      for (int k = 0; k < together; ++k) sum += shared.sum[k];  // 0 if there is no block
    }
    return sum;
  }

  /// Returns the bits of the largest magnitude.
  template <class Block>
  TERSE_HD static std::uint32_t largest(Block& block, Shared& shared, const float* x, index_t count) {
    const int thread = block.thread();
    std::uint32_t most = 0;
    const auto take = [&](std::uint32_t size) { most = size > most ? size : most; };
    for (index_t i = thread; i < count; i += block_threads)
      take(std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU);
    for (int half = 16; half > 0; half /= 2) take(block.shuffle(most, (thread + half) % 32));
    if (thread % 32 == 0) shared.largest[thread / 32] = most;
    block.sync();
    for (const std::uint32_t size : shared.largest) take(size);
    return most;
  }

  /// Scales x as the host's function of the same name does.
  template <class Block>
  TERSE_HD static bool scale_to(Block& block, Shared& shared, float* x, index_t count, int exponent) {
    const std::uint32_t most = largest(block, shared, x, count);
    const float factor = power_to(most, exponent);
    for (index_t i = block.thread(); i < count; i += block_threads) x[i] *= factor;
    block.sync();
    return most != 0;
  }

 private:
  /// Computes `part` products of each block, four per thread at a time, all loads before the first store.
  TERSE_HD static void multiply(Shared& shared, const Step& step, index_t count, index_t begin, int together,
                                int part, int thread) {
    constexpr int few = 4;
    for (int block = 0; block < together; ++block, begin += reduction_block) {
      float* product = shared.product + block * (part + Strip::width) + thread;
      index_t i = begin + thread;
      for (int k = 0; k < part && i < count; k += few * block_threads) {
        float x[few], other[few], before[few];
        TERSE_UNROLL
        for (int n = 0; n < few; ++n) {
          const bool here = i + n * block_threads < count;
          x[n] = here ? step.x[i + n * block_threads] : 0;
          other[n] = here && step.other != nullptr ? step.other[i + n * block_threads] : 0;
          before[n] = here && step.before != nullptr ? step.before[i + n * block_threads] : 0;
        }
        TERSE_UNROLL
        for (int n = 0; n < few; ++n) {
          x[n] *= step.factor;
          if (step.before != nullptr) x[n] -= step.along * before[n];
          if (i + n * block_threads < count) step.x[i + n * block_threads] = x[n];
          product[n * block_threads] = x[n] * (step.other != nullptr ? other[n] : x[n]);
        }
        i += few * block_threads;
        product += few * block_threads;
      }
    }
  }
  /// Returns total plus every 16th of `count` products.
  TERSE_HD static float added(const float* product, float total, int count) {
    constexpr int many = 16;
    int k = 0;
    for (; k + (many - 1) * Strip::width < count; k += many * Strip::width) {
      float some[many];
      TERSE_UNROLL
      for (int n = 0; n < many; ++n) some[n] = product[k + n * Strip::width];
      TERSE_UNROLL
      for (int n = 0; n < many; ++n) total += some[n];
    }
    for (; k < count; k += Strip::width) total += product[k];
    return total;
  }
};

/// Kernel with one block of threads per matrix.
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
    const auto dot = [&](const BlockVector::Step& step) {
      return BlockVector::dot(block, shared, step, p.count);
    };
    for (int r = 0; r < R; ++r) {
      float* const x = p[r];
      BlockVector::Step step{x};
      step.factor = power_to(BlockVector::largest(block, shared, x, p.count), 0);
      const float before = dot(step);
      step.factor = 1;
      for (int pass = 0; pass < 2; ++pass)
        for (int b = 0; b < r; ++b) {
          step.other = p[b];
          step.along = dot(step);
          step.before = p[b];
        }
      step.other = nullptr;
      const float norm = std::sqrt(dot(step));
      const bool kept = norm > least_remainder * std::sqrt(before);
      if (block.thread() == 0) lost[block.index() * R + r] = kept ? 0 : 1;
      for (index_t i = block.thread(); i < p.count; i += block_threads) x[i] = kept ? x[i] / norm : 0.0F;
    }
  }
};

/// Kernel with one block of threads per column.
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

/// Returns a / b for numbers that are not negative. On a device, 64-bit division is a function call.
TERSE_HD inline index_t quotient(index_t a, index_t b) {
  if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Functor that computes a product element by element.
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
    const index_t at = i - piece.offset, row = quotient(at, right.count), column = at - row * right.count;
    float total = 0;
    for (int r = 0; r < R; ++r) total += left[r][row] * right[r][column];
    f(piece, i, keep, total);
  }
};

TERSE_NUMERICS_END

}  // namespace detail

/// Computes the same bits as the host's verb of the same name, as the verbs below do.
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
