// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "terse/executor/factors.hpp"
#include "terse/executor/grid_product.hpp"
#include "terse/preconditioner/layer_statistic.hpp"

namespace terse {

/// One step towards the nearest orthogonal matrix: X = a X + (b A + c A A) X with A = X X^T, which makes of each singular value
/// s the value a s + b s^3 + c s^5.
struct Quintic {
  float a, b, c;
};

TERSE_NUMERICS_BEGIN

namespace detail {

/// Values that the power of two of their layer brings to magnitudes of at most 2.
struct BroughtNearOne {
  const float* values;
  LayerTable largest;
  float power = 1;
  TERSE_HD void enter(const Piece& piece) {
    power = power_to(std::bit_cast<std::uint32_t>(largest[piece.segment]), 0);
  }
  TERSE_HD float operator()(const Piece&, index_t i) const { return values[i] * power; }
};

/// X = G / (margin ||G|| + epsilon), of which the norm is known times that power.
struct Normalize {
  float* values;
  LayerTable largest, norms;
  float margin, epsilon;
  float factor = 1;
  TERSE_HD void enter(const Piece& piece) {
    const float power = power_to(std::bit_cast<std::uint32_t>(largest[piece.segment]), 0);
    factor = power / (margin * norms[piece.segment] + epsilon * power);
  }
  TERSE_HD void operator()(const Piece&, index_t i, bool) const { values[i] *= factor; }
};

/// Nothing is orthogonalized.
struct NoSequence {};

/// Makes of each hidden matrix among the values of an arena what a Sequence of polynomials makes of it: first
/// X = G / (margin ||G||_F + epsilon), and then one Quintic after the other, in the order of `steps`. Memory: one matrix and
/// two squares of its shorter side, for the largest. Products of the shorter side's squares: 4 m^2 n + 2 m^3 operations a
/// step, m <= n, of which the symmetric ones are half done.
template <Executor E, class Sequence>
class Orthogonalizer {
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
    if (matrices_.empty())
      throw usage_error(
          "no segment of the layout is marked as hidden, and this optimizer's preconditioner is for hidden "
          "matrices: set "
          "Segment::hidden for those between the input and the output");
    other_ = Arena(elements, unwritten);
    gram_ = Arena(square, unwritten);
    polynomial_ = Arena(square, unwritten);
    scratch_ = Arena(product_scratch(executor), unwritten);
  }

  void operator()(E executor, float* values) {
    largest_.measure(executor, Stored{values});
    norms_.measure(executor, BroughtNearOne{values, largest_.table()});
    for_each(executor, largest_.range(), NoMask{}, NoPackets{},
             Normalize{values, largest_.table(), norms_.table(), Sequence::margin, Sequence::epsilon});
    for (const Matrix& matrix : matrices_) iterate(executor, values + matrix.offset, matrix.shape);
  }

 private:
  using Arena = buffer<float, typename E::memory>;
  struct Matrix {
    index_t offset;
    MatrixShape shape;
  };
  static bool is_hidden(const Segment& segment) { return segment.hidden; }

  void iterate(E executor, float* const x, MatrixShape shape) {
    const bool wide = shape.rows <= shape.columns;
    const index_t side = std::min(shape.rows, shape.columns);
    const MatrixView gram = MatrixView::of(gram_.data(), {side, side});
    const MatrixView polynomial = MatrixView::of(polynomial_.data(), {side, side});
    float *from = x, *to = other_.data();
    for (const Quintic& step : Sequence::steps) {
      const MatrixView now = MatrixView::of(from, shape), across = now.transposed();
      multiply_into(executor, {.left = wide ? now : across, .right = wide ? across : now, .symmetric = true},
                    gram_.data(), scratch_.data());
      multiply_into(executor, {gram, gram, step.c, gram_.data(), step.b, true}, polynomial_.data(),
                    scratch_.data());
      multiply_into(executor, {wide ? polynomial : now, wide ? now : polynomial, 1, from, step.a}, to,
                    scratch_.data());
      std::swap(from, to);
    }
    const index_t count = shape.rows * shape.columns;
    if (from != x) copy(executor, in<E>(other_.all().part(0, count)), out<E>(x, count));
  }

  LayerStatistic<E, MaxAbs> largest_;
  LayerStatistic<E> norms_;
  std::vector<Matrix> matrices_;
  Arena other_, gram_, polynomial_, scratch_;
};
template <Executor E>
class Orthogonalizer<E, NoSequence> {
 public:
  Orthogonalizer(E, const Layout&) {}
  void operator()(E, float*) {}
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
