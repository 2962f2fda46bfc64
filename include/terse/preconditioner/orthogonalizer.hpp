// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "terse/executor/factors.hpp"
#include "terse/executor/matrix_product.hpp"
#include "terse/preconditioner/layer_statistic.hpp"
#include "terse/preconditioner/sequence.hpp"

namespace terse {

/// One step towards the nearest orthogonal matrix: X = a X + (b A + c A A) X with A = X X^T, which maps each singular value s
/// to a s + b s^3 + c s^5.
struct Quintic {
  float a, b, c;
};

TERSE_NUMERICS_BEGIN

namespace detail {

/// Values scaled by their layer's power of two, so that magnitudes are at most 2.
struct BroughtNearOne {
  const float* values;
  LayerTable largest;
  float power = 1;
  using StreamsOf = BroughtNearOne;
  TERSE_HD auto streams() { return reads(values); }
  TERSE_HD void enter(const Piece& piece) {
    power = power_to(std::bit_cast<std::uint32_t>(largest[piece.segment]), 0);
  }
  TERSE_HD float operator()(const Piece&, index_t i) const { return values[i] * power; }
};

/// X = G / (margin ||G||); 0 for zeros. The norm in `norms` is that of G times the power of two.
struct Normalize {
  float* values;
  LayerTable largest, norms;
  float margin;
  float power = 1, factor = 1;
  using StreamsOf = Normalize;
  TERSE_HD auto streams() { return updates(values); }
  TERSE_HD void enter(const Piece& piece) {
    const float norm = norms[piece.segment];
    power = power_to(std::bit_cast<std::uint32_t>(largest[piece.segment]), 0);
    factor = norm > 0 ? 1 / (margin * norm) : 0.0F;
  }
  // The multiplications are separate, since the product of the factors may overflow.
  TERSE_HD void operator()(const Piece&, index_t i, bool) const { values[i] = values[i] * power * factor; }
};

/// Applies a Sequence of polynomials to each hidden matrix among the values of an arena: first X = G / (margin
/// ||G||_F), for G of any magnitude, and then the Quintics, one after the other, in the order of `steps`.
///
/// A step's polynomial Q = a I + b A + c A A commutes with A. So a matrix that is at least twice as long as wide is read and
/// written once: X = (Q_5 ... Q_1) X_0, where A = Q A Q for the next step and all factors are squares of the shorter side m. The
/// operations are 3 m^2 n + 17 m^3 instead of 15 m^2 n + 5 m^3, m <= n. Singular values below 1e-4 of the norm then have an
/// error of up to 1e-3 of the largest value, instead of 1e-5. Memory: the largest matrix, and four squares. Source: Amsel et
/// al., "The Polar Express", 2025 (arXiv 2505.16932), appendix F.
template <Executor E, class Sequence>
class Orthogonalizer {
  static_assert(!TeamExecutor<E>,
                "terse: preconditioners of matrices have no parallel form: take executor::host");

 public:
  TERSE_COLD Orthogonalizer(E executor, const Layout& layout)
      : largest_(executor, layout, is_hidden), norms_(executor, layout, is_hidden) {
    index_t elements = 0, square = 0;
    for (const Piece& piece : largest_.range().pieces()) {
      const MatrixShape shape = matrix_shape(layout.segments()[static_cast<std::size_t>(piece.segment)]);
      const index_t side = std::min(shape.rows, shape.columns);
      matrices_.push_back({piece.offset, shape});
      elements = std::max(elements, piece.count);
      square = std::max(square, side * side);
    }
    if (std::none_of(layout.segments().begin(), layout.segments().end(), is_hidden))
      throw usage_error(
          "no segment of the layout is marked as hidden, and this optimizer's preconditioner is for hidden "
          "matrices: set Segment::hidden for those between the input and the output");
    other_ = Arena(elements, uninitialized);
    for (Arena& one : squares_) one = Arena(square, uninitialized);
    scratch_ = Arena(product_scratch(executor), uninitialized);
  }

  void operator()(E executor, float* values) {
    largest_.measure(executor, Stored{values});
    norms_.measure(executor, BroughtNearOne{values, largest_.table()});
    for_each(executor, largest_.range(), NoMask{}, NoPackets{},
             Normalize{values, largest_.table(), norms_.table(), Sequence::margin});
    for (const auto& [offset, shape] : matrices_) {
      float* const x = values + offset;
      const auto [least, most] = std::minmax(shape.rows, shape.columns);
      const float* const last =
          most >= 2 * least ? by_squares(executor, x, shape) : by_steps(executor, x, shape);
      const index_t count = shape.rows * shape.columns;
      if (last != x) copy(executor, in<E>(last, count), out<E>(x, count));
    }
  }

 private:
  using Arena = buffer<float, typename E::memory>;
  struct Matrix {
    index_t offset;
    MatrixShape shape;
  };
  static bool is_hidden(const Segment& segment) { return segment.hidden; }

  /// Computes to = X X^T, or X^T X if X is tall.
  void gram(E executor, const MatrixView& x, float* to) {
    const bool wide = x.rows <= x.columns;
    const MatrixView left = wide ? x : x.transposed();
    multiply_into(executor, MatrixProduct{.left = left, .right = left.transposed(), .symmetric = true}, to,
                  scratch_.data());
  }
  /// Computes to = S X + scale X, or X S + scale X if X is tall.
  void apply(E executor, const float* square, const MatrixView& x, float scale, float* to) {
    const bool wide = x.rows <= x.columns;
    const index_t side = wide ? x.rows : x.columns;
    const MatrixView s = MatrixView::of(square, {side, side});
    multiply_into(executor,
                  MatrixProduct{wide ? s : x, wide ? x : s, 1, scale != 0 ? x.data : nullptr, scale}, to,
                  scratch_.data());
  }

  /// Applies the steps in the form of their definition. Returns the place of the result.
  float* by_steps(E executor, float* x, MatrixShape shape) {
    const index_t side = std::min(shape.rows, shape.columns);
    float *to = other_.data(), *const a = squares_[0].data(), *const polynomial = squares_[1].data();
    const MatrixView square = MatrixView::of(a, {side, side});
    for (const Quintic& step : Sequence::steps) {
      const MatrixView now = MatrixView::of(x, shape);
      gram(executor, now, a);
      multiply_into(executor, MatrixProduct{square, square, step.c, a, step.b, 0, true}, polynomial,
                    scratch_.data());
      apply(executor, polynomial, now, step.a, to);
      std::swap(x, to);
    }
    return x;
  }
  /// Applies the steps to squares, except the first product and the last one. Returns the place of the result.
  float* by_squares(E executor, float* x, MatrixShape shape) {
    const index_t side = std::min(shape.rows, shape.columns);
    float *const a = squares_[0].data(), *const q = squares_[1].data(), *all = squares_[2].data(),
                 *spare = squares_[3].data();
    const auto multiply_squares = [&](const float* left, const float* right, float* to) {
      const MatrixShape both{side, side};
      multiply_into(
          executor,
          MatrixProduct{
              .left = MatrixView::of(left, both), .right = MatrixView::of(right, both), .symmetric = true},
          to, scratch_.data());
    };
    const MatrixView square = MatrixView::of(a, {side, side}), now = MatrixView::of(x, shape);
    gram(executor, now, a);
    const auto& steps = Sequence::steps;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      float* const own = k == 0 ? all : q;
      multiply_into(executor, MatrixProduct{square, square, steps[k].c, a, steps[k].b, steps[k].a, true}, own,
                    scratch_.data());
      if (k + 1 < steps.size()) {
        multiply_squares(own, a, spare);
        multiply_squares(spare, own, a);
      }
      if (k > 0) {
        multiply_squares(q, all, spare);
        std::swap(spare, all);
      }
    }
    apply(executor, all, now, 0, other_.data());
    return other_.data();
  }

  LayerStatistic<E, MaxAbs> largest_;
  LayerStatistic<E> norms_;
  std::vector<Matrix> matrices_;
  Arena other_, scratch_;
  std::array<Arena, 4> squares_;
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
