// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "terse/preconditioner/newton_schulz.hpp"

namespace terse {

/// A Sequence for every N-th row, rounded up, of each matrix: see OrthogonalRows.
template <int N, class Sequence_ = NewtonSchulzSequence>
struct LargestRows {
  static_assert(N >= 1, "terse: LargestRows takes one row in N, which is at least 1");
  static constexpr int one_in = N;
  using Sequence = Sequence_;
};

/// Orthogonal, applied to 1 / N of the rows, rounded up: the rows with the largest sums of magnitudes; among equal sums, the first
/// ones. In a matrix that is taller than wide, columns are selected instead. The selected lines are orthogonalized as a separate
/// matrix. The other lines have no step, but their weights decay, and RowMomentum keeps their direction for later. If N = 1, it is
/// Orthogonal.
///
///     Dion2<OrthogonalRows<8>>        an eighth of the rows in each step
///
/// Work: that of Orthogonal for matrices of m / N x n, and in addition 2 m n operations and m m comparisons. Memory: n /
/// N floats, and as many floats as the largest matrix has elements. Source: Ahn, Amsel and Langford, "Dion2", 2025
/// (arXiv 2512.16928).
template <int N, class Sequence = NewtonSchulzSequence>
using OrthogonalRows = Orthogonal<LargestRows<N, Sequence>>;

TERSE_NUMERICS_BEGIN

namespace detail {

/// A matrix as a list of lines (rows or columns, along the shorter dimension), and the place of its chosen lines.
struct Lines {
  index_t offset = 0;  // of the matrix in its arena
  MatrixShape shape{};
  bool rows = true;
  index_t chosen = 0, first = 0,
          picked = 0;  // number of chosen lines; offset in the list of lines; offset in their arena

  index_t count() const { return rows ? shape.rows : shape.columns; }
};

/// Magnitudes scaled to about 1, written with indices relative to `begin`.
struct Magnitudes {
  BroughtNearOne near_one;
  float* to;
  index_t begin;
  TERSE_HD void enter(const Piece& piece) { near_one.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i) const {
    to[i - begin] = magnitude(near_one(piece, i));
  }
};

/// Marks a line as chosen if fewer than `chosen` lines of the same matrix rank before it.
struct ChooseLines {
  const float* sums;
  const Lines* matrices;
  std::uint8_t* chosen;
  TERSE_HD void operator()(const Piece& piece, index_t i) const {
    const float own = sums[i];
    index_t before = 0;
    for (index_t j = piece.offset; j < piece.offset + piece.count; ++j) {
      const bool tied = sums[j] == own && j < i;
      before += tied || sums[j] > own ? 1 : 0;
    }
    chosen[i] = before < matrices[piece.segment].chosen ? 1 : 0;
  }
};
/// Lists the chosen lines in their order.
struct ListLines {
  const std::uint8_t* chosen;
  index_t* list;
  TERSE_HD void operator()(const Piece& piece, index_t i) const {
    if (chosen[i] == 0) return;
    index_t place = 0;
    for (index_t j = piece.offset; j < i; ++j) place += chosen[j];
    list[piece.offset + place] = i - piece.offset;
  }
};

/// The index that an element of the chosen lines has in the arena of whole matrices.
struct SourceOf {
  const Lines* matrices;
  const index_t* list;
  Lines own{};
  TERSE_HD void enter(const Piece& piece) { own = matrices[piece.segment]; }
  TERSE_HD index_t operator()(index_t i) const {
    const index_t columns = own.shape.columns, across = own.rows ? columns : own.chosen;
    const index_t row = (i - own.picked) / across, column = (i - own.picked) % across;
    const index_t line = list[own.first + (own.rows ? row : column)];
    return own.offset + (own.rows ? line * columns + column : row * columns + line);
  }
};
struct PickLines {
  const float* values;
  SourceOf source;
  float* picked;
  TERSE_HD void enter(const Piece& piece) { source.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i) const { picked[i] = values[source(i)]; }
};
struct PutLinesBack {
  const float* picked;
  SourceOf source;
  float* values;
  TERSE_HD void enter(const Piece& piece) { source.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    values[source(i)] = picked[i] + 0.0F;  // a step of -0 becomes 0
  }
};
struct LeaveOut {
  float* values;
  TERSE_HD void operator()(const Piece&, index_t i) const { values[i] = no_step; }
};

/// The largest lines of each hidden matrix, orthogonalized by the Sequence as separate matrices; the other lines are left out.
template <Executor E, int N, class Sequence>
class Orthogonalizer<E, LargestRows<N, Sequence>> {
 public:
  TERSE_COLD Orthogonalizer(E executor, const Layout& layout)
      : largest_(executor, layout, [](const Segment& segment) { return segment.hidden; }) {
    Layout picked, lines;
    std::vector<Lines> matrices;
    index_t elements = 0;
    for (const Segment& segment : layout.segments()) {
      Lines& own = matrices.emplace_back();
      if (segment.hidden && segment.count > 0) {
        own.offset = segment.offset;
        own.shape = matrix_shape(segment);
        own.rows = own.shape.rows <= own.shape.columns;
        own.chosen = (own.count() + N - 1) / N;
        elements = std::max(elements, segment.count);
      }
      // Segments have equal numbers in all three layouts.
      const MatrixShape there =
          own.rows ? MatrixShape{own.chosen, own.shape.columns} : MatrixShape{own.shape.rows, own.chosen};
      picked.add({.name = segment.name, .shape = {there.rows, there.columns}, .hidden = own.chosen > 0});
      lines.add({.name = segment.name, .shape = {own.count()}});
      own.picked = picked.segments().back().offset;
      own.first = lines.segments().back().offset;
    }
    matrices_ = buffer<Lines, typename E::memory>(static_cast<index_t>(matrices.size()));
    put(executor, view<const Lines>(matrices), out<E, Lines>(matrices_.all()));
    for (const Piece& piece : largest_.range().pieces())
      one_by_one_.push_back({matrices[static_cast<std::size_t>(piece.segment)], Range({piece})});
    magnitudes_ = Arena(elements, uninitialized);
    sums_ = Arena(lines.size());
    picked_ = Arena(picked.size());
    chosen_ = buffer<std::uint8_t, typename E::memory>(lines.size());
    list_ = buffer<index_t, typename E::memory>(lines.size());
    scratch_ = Arena(product_scratch(executor), uninitialized);
    one_ = Arena(1);
    fill(executor, one_.all(), 1.0F);
    lines_ = lines.range();
    picks_ = picked.range();
    orthogonalizer_.emplace(executor, picked);
  }

  void operator()(E executor, float* values) {
    largest_.measure(executor, Stored{values});
    for (const Single& matrix : one_by_one_) sum(executor, matrix, values);
    for_each(executor, lines_, ChooseLines{sums_.data(), matrices_.data(), chosen_.data()});
    for_each(executor, lines_, ListLines{chosen_.data(), list_.data()});
    const SourceOf source{matrices_.data(), list_.data()};
    for_each(executor, picks_, PickLines{values, source, picked_.data()});
    (*orthogonalizer_)(executor, picked_.data());
    for_each(executor, largest_.range(), LeaveOut{values});
    for_each(executor, picks_, PutLinesBack{picked_.data(), source, values});
  }

 private:
  using Arena = buffer<float, typename E::memory>;
  struct Single {
    Lines lines;
    Range range;
  };

  /// Sums the magnitudes of each line of a matrix: a product with a vector of ones, on the side that has narrow tiles.
  void sum(E executor, const Single& matrix, const float* values) {
    for_each(executor, matrix.range,
             Magnitudes{{values, largest_.table()}, magnitudes_.data(), matrix.lines.offset});
    const MatrixView all = MatrixView::of(magnitudes_.data(), matrix.lines.shape),
                     lines = matrix.lines.rows ? all : all.transposed();
    multiply_into(executor,
                  MatrixProduct{.left = {one_.data(), 1, lines.columns, 0, 0}, .right = lines.transposed()},
                  sums_.data() + matrix.lines.first, scratch_.data());
  }

  LayerStatistic<E, MaxAbs> largest_;
  std::vector<Single> one_by_one_;
  Range lines_, picks_;
  buffer<Lines, typename E::memory> matrices_;
  Arena magnitudes_, sums_, picked_, scratch_, one_;
  buffer<std::uint8_t, typename E::memory> chosen_;
  buffer<index_t, typename E::memory> list_;
  std::optional<Orthogonalizer<E, Sequence>> orthogonalizer_;
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
