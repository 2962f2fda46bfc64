// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>
#include <vector>

#include "terse/executor/concept.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Adapts a functor of (piece, i) to the functor of a reduction.
template <class F>
struct AsSample {
  F f;
  using StreamsOf = AsSample;
  TERSE_HD auto streams() requires NamesStreams<F> { return f.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(f, piece); }
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool) const { return {f(piece, i), 0}; }
};

/// The values of an arena.
struct Stored {
  const float* values;
  using StreamsOf = Stored;
  TERSE_HD auto streams() { return reads(values); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return values[i]; }
};

/// A number for each segment, in the executor's memory, for update functors.
struct LayerTable {
  const float* numbers;
  const index_t* places;  // by segment; -1: not measured
  TERSE_HD bool has(index_t segment) const { return places[segment] >= 0; }
  TERSE_HD float operator[](index_t segment) const { return numbers[places[segment]]; }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// A statistic, such as the norm, of each chosen segment that is not empty. One read-only pass.
template <Executor E, class Statistic = EuclideanNorm>
class LayerStatistic {
 public:
  /// Chooses segments with at least this many dimensions.
  LayerStatistic(E executor, const Layout& layout, std::size_t least_dimensions)
      : LayerStatistic(executor, layout,
                       [=](const Segment& segment) { return segment.shape.size() >= least_dimensions; }) {}
  template <class Choose>
  requires std::predicate<Choose, const Segment&> LayerStatistic(E executor, const Layout& layout,
                                                                 const Choose& choose)
      : bad_(1) {
    std::vector<Piece> pieces;
    std::vector<index_t> places(layout.segments().size(), -1);
    const Range all = layout.range();
    for (const Piece& piece : all.pieces()) {
      const auto segment = static_cast<std::size_t>(piece.segment);
      if (!choose(layout.segments()[segment])) continue;
      places[segment] = static_cast<index_t>(pieces.size());
      pieces.push_back(piece);
    }
    numbers_ = buffer<float, typename E::memory>(static_cast<index_t>(pieces.size()), uninitialized);
    places_ = buffer<index_t, typename E::memory>(static_cast<index_t>(places.size()));
    put(executor, view<const index_t>(places.data(), static_cast<index_t>(places.size())),
        out<E, index_t>(places_.all()));
    range_ = Range(std::move(pieces));
    scratch_ = buffer<float, typename E::memory>(reduction_scratch<Statistic>(executor, range_, Units{}),
                                                 uninitialized);
  }

  /// Measures the statistic of value(piece, i). If a segment's total overflows, its statistic is 0.
  template <class F>
  void measure(E executor, const F& value) {
    reduce<Statistic>(executor, range_, Units{}, NoMask{}, NoPackets{}, AsSample<F>{value}, scratch_.all(),
                      numbers_.all(), bad_.data());
  }
  const Range& range() const { return range_; }
  LayerTable table() const { return {numbers_.data(), places_.data()}; }

 private:
  Range range_;
  buffer<float, typename E::memory> numbers_, scratch_;
  buffer<index_t, typename E::memory> places_;
  buffer<std::uint32_t, typename E::memory> bad_;
};

}  // namespace detail

}  // namespace terse
