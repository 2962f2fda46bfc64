// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/compressor/dion_direction.hpp"
#include "terse/exchange/inner_mean.hpp"
#include "terse/executor/factors.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Stores the error, e = y - the sent value.
template <class View>
struct KeepError {
  View feedback;
  TERSE_HD void operator()(const Piece&, index_t i, bool keep, float sent) const {
    feedback.commit(i, keep, feedback.load(i), sent);
  }
};

/// Replaces values that can't be sent by 0, here and so also in the error.
struct Sanitize {
  float* arena;
  using StreamsOf = Sanitize;
  TERSE_HD auto streams() { return updates(arena); }
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const {
    const Sample sample = sanitized(arena[i]);
    arena[i] = sample.value;
    return sample;
  }
};

/// Passes an element on after multiplying it by sqrt(rows / columns) of its matrix.
template <class F>
struct ScaledByShape {
  const Factored* matrices;
  index_t count;
  F f;
  float factor = 1;
  TERSE_HD void enter(const Piece& piece) {
    const MatrixShape& shape = find(matrices, count, piece.offset).shape;
    factor = std::sqrt(static_cast<float>(shape.rows) / static_cast<float>(shape.columns));
    terse::enter(f, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float element) const {
    f(piece, i, keep, factor * element);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// The round of LowRank<R> or, if Direction, of DionDirection<R>; see these. P may be any exact topology; the factors are averaged
/// over DenseTopologyOf<P>, as full-precision stages are.
template <int R, class P, class E, bool Direction>
class LowRankRound {
  static_assert(!detail::TeamExecutor<E>,
                "terse: low-rank compressors have no parallel form: take executor::host");
  static_assert(P::exact, "terse: LowRank needs an exact topology: all ranks continue with the same factors");
  static_assert(
      !detail::is_no_mean<P>(),
      "terse: LowRank's ranks average factors of matrices, and Gathered merges whole messages. Take another "
      "topology or compressor");

 public:
  template <class Context>
  LowRankRound(Context& context, const P& topology)
      : factors_(context),
        matrices_(table_of(factors_.matrices)),
        columns_(table_of(Direction ? factors_.columns() : std::vector<detail::Factored>{})),
        moved_(table_of(factors_.moved)),
        left_(factors_.left.size()),
        right_(factors_.right.size() + detail::Strip::width),  // see for_each_product
        own_right_(factors_.right.size() + detail::Strip::width),
        scratch_(std::max(reduction_scratch<SumOfSquares>(context.executor, factors_.dense, Units{0, true}),
                          reduction_scratch<MaxAbs>(context.executor, factors_.right_range, Units{0, true})),
                 uninitialized),
        total_(1),
        overflow_(1),
        lost_(static_cast<index_t>(factors_.right.segments().size())),
        left_mean_(context, factors_.left, topology),
        right_mean_(context, factors_.right, topology),
        draw_(Draw::shared(context.codec.compressor().seed, 0, Purpose::initialization)) {
    prepare_columns<R>(context.executor, matrices_.all(), right_.data(), draw_);
  }

  template <class Context, class M>
  void start(Context& context, const M& message) {
    context.codec.materialize(context.plan.whole.compressed, context.mask, message);
    context.note(context.codec);
    for (const detail::Factored& matrix : factors_.matrices) {
      multiply<R>(context.executor, context.codec.feedback().at(matrix.offset), as_const(right(matrix)),
                  left(matrix));
    }
    for_each(
        context.executor, context.plan.whole.dense,
        detail::PutThere<decltype(message.dense)>{moved_.data(), moved_.size(), left_.data(), message.dense});
    left_mean_.start(context, left_.data());
    have_left_ = false;
  }

  template <class Context, class M>
  bool advance(Context& context, const M&, bool block) {
    if (have_left_) return right_mean_.advance(context, own_right_.data(), block);
    if (!left_mean_.advance(context, left_.data(), block)) return false;
    left_mean_.take(context, {left_.data()});
    if (factors_.matrices.empty()) return true;
    have_left_ = true;
    orthonormalize<R>(context.executor, matrices_.all(), left_.data(), lost_.data());
    for (const detail::Factored& matrix : factors_.matrices)
      multiply_transposed<R>(context.executor, context.codec.feedback().at(matrix.offset),
                             as_const(left(matrix)),
                             {own_right_.data() + matrix.right, matrix.shape.columns});
    reduce<MaxAbs>(context.executor, factors_.right_range, Units{0, true}, {}, NoPackets{},
                   detail::Sanitize{own_right_.data()}, scratch_.all(), total_.all(), context.codec.bad());
    context.note(context.codec);
    right_mean_.start(context, own_right_.data());
    // While packets are in flight: computes the error against this rank's own reconstruction.
    if constexpr (decltype(context.feedback)::corrects)
      for_each_entry(context, own_right_.data(),
                     detail::KeepError<decltype(context.codec.feedback())>{context.codec.feedback()});
    return false;
  }

  template <class Context, class Consumer>
  void consume(Context& context, const Consumer& consumer) {
    if (have_left_) {
      right_mean_.take(context, {right_.data(), lost_.data()});
      if (!context.dense_only) deliver(context, detail::delivery(context, consumer.compressed, 1));
      // Does not change columns whose update an error has prevented.
      prepare_columns<R>(context.executor, matrices_.all(), right_.data(), draw_);
    }
    for_each(context.executor, context.plan.whole.dense, NoMask{}, NoPackets{},
             context.envelope.gated(detail::TakeThere<decltype(consumer.dense)>{
                 moved_.data(), moved_.size(), left_.data(), consumer.dense}));
  }

  /// Returns the squared norm of the dense part of the mean, the same on all ranks. Waits for the device.
  double notes(E executor) {
    reduce<SumOfSquares>(executor, factors_.dense, Units{0, true}, {}, NoPackets{},
                         detail::ReadArena{left_.data()}, scratch_.all(), total_.all(), overflow_.data());
    float total = 0;
    fetch(executor, in<E>(total_.all()), view<float>(&total, 1));
    return static_cast<double>(total);
  }

  template <class Context>
  index_t most_bytes(const Context&) const {
    return left_mean_.most_bytes() + (factors_.matrices.empty() ? 0 : right_mean_.most_bytes());
  }

  /// Visits the right factors, with which the next round starts, column after column, each padded to 64 elements.
  template <class Visit>
  void walk(Visit&& visit) {
    visit("low_rank_q", right_.all().part(0, factors_.right.size()), index_t{0});
  }

 private:
  /// The places of the factors and of the dense pieces.
  struct Factors {
    std::vector<detail::Factored> matrices;
    std::vector<detail::Moved> moved;  // dense pieces, which are sent with the left factors
    Layout left, right;                // a segment for each column
    Range dense;                       // the dense pieces in `left`
    Range right_range;

    template <class Context>
    explicit Factors(const Context& context) {
      for (const Piece& piece : context.plan.whole.compressed.pieces()) {
        const Segment& segment = context.layout.segments()[static_cast<std::size_t>(piece.segment)];
        if (piece.count != segment.count)
          throw usage_error("LowRank takes whole matrices; the range cuts segment '" + segment.name + "'");
        const MatrixShape shape = detail::matrix_shape(segment);
        matrices.push_back({piece.offset, shape, left.size(), right.size()});
        for (int r = 0; r < R; ++r) {
          left.add({std::to_string(left.segments().size()), {shape.rows}});
          right.add({std::to_string(right.segments().size()), {shape.columns}});
        }
      }
      std::vector<Piece> pieces;
      for (const Piece& piece : context.plan.whole.dense.pieces()) {
        if (Direction) refuse_hidden(context.layout.segments()[static_cast<std::size_t>(piece.segment)]);
        const auto number = static_cast<index_t>(left.segments().size());
        moved.push_back({piece.offset, left.size()});
        pieces.push_back({number, left.size(), piece.count});
        left.add({std::to_string(number), {piece.count}});
      }
      if (Direction) detail::require_directions(!matrices.empty());
      dense = Range(std::move(pieces));
      right_range = right.range();
    }
    static void refuse_hidden(const Segment& segment) {
      if (!segment.hidden) return;
      const MatrixShape shape = detail::matrix_shape(segment);
      throw usage_error(
          "hidden segment '" + segment.name + "' of " + std::to_string(shape.rows) + " x " +
          std::to_string(shape.columns) + " would travel as it is, with no direction of its own: " +
          (segment.compress ? "factors of " + std::to_string(R) +
                                  " columns don't make it smaller; take fewer, or don't mark it "
                                  "as hidden"
                            : "let it be compressed, or don't mark it as hidden"));
    }
    /// Returns the columns of the right factors, each as a separate matrix.
    std::vector<detail::Factored> columns() const {
      std::vector<detail::Factored> all;
      for (const Segment& column : right.segments())
        all.push_back({column.offset, {column.count, 1}, column.offset, 0});
      return all;
    }
  };

  template <class Entry>
  static buffer<Entry, typename E::memory> table_of(const std::vector<Entry>& entries) {
    buffer<Entry, typename E::memory> table(static_cast<index_t>(entries.size()));
    upload(view<const Entry>(entries), table.all());
    return table;
  }
  static Columns<const float> as_const(Columns<float> columns) { return {columns.data, columns.count}; }
  Columns<float> left(const detail::Factored& matrix) {
    return {left_.data() + matrix.left, matrix.shape.rows};
  }
  Columns<float> right(const detail::Factored& matrix) {
    return {right_.data() + matrix.right, matrix.shape.columns};
  }

  /// Delivers the product of the mean factors. As a direction, delivers the product of the left factor and the right one with columns
  /// normalized to length 1. The normalized factor is a copy, in the place of the last round's own factor. The mean right factor
  /// starts the next round and must not change if this round fails.
  template <class Context, class F>
  void deliver(Context& context, const F& f) {
    if constexpr (Direction) {
      copy(context.executor, in<E>(right_.all()), own_right_.all());
      orthonormalize<1>(context.executor, columns_.all(), own_right_.data(), lost_.data());
      for_each_entry(context, own_right_.data(),
                     detail::ScaledByShape<F>{matrices_.data(), matrices_.size(), f});
    } else {
      for_each_entry(context, right_.data(), f);
    }
  }
  /// Calls f(piece, i, keep, element) over the products of the left factors and `right`.
  template <class Context, class F>
  void for_each_entry(Context& context, const float* right, const F& f) {
    for_each_product<R>(context.executor, context.plan.whole.compressed, context.mask, matrices_.all(),
                        left_.data(), right, f);
  }

  Factors factors_;
  buffer<detail::Factored, typename E::memory> matrices_, columns_;
  buffer<detail::Moved, typename E::memory> moved_;
  buffer<float, typename E::memory> left_, right_, own_right_, scratch_, total_;
  buffer<std::uint32_t, typename E::memory> overflow_;  // of a norm; never read
  buffer<std::uint8_t, typename E::memory> lost_;
  detail::InnerMean<P, E> left_mean_, right_mean_;
  Draw draw_;
  bool have_left_ = false;
};

}  // namespace detail

}  // namespace terse
