// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "terse/core/segment_predicates.hpp"
#include "terse/topology/decoded_packet.hpp"
#include "terse/topology/gathered.hpp"

namespace terse {

namespace detail {

TERSE_NUMERICS_BEGIN

/// The properties of a piece that a radial merge uses.
struct RadialPiece {
  std::uint32_t segment;
  std::uint32_t plain;  // 1 for a plain mean
};

/// Adds a packet's norms to the totals, and computes the factor of each of its segments.
struct TakeNorms {
  const RadialPiece* pieces;
  const float* norms;  // by piece
  float* totals;       // by piece
  float* factors;      // by segment
  float weight;
  TERSE_HD void operator()(index_t p) const {
    const float norm = norms[p];
    totals[p] += weight * norm;
    factors[pieces[p].segment] = pieces[p].plain != 0 ? weight : norm > 0 ? weight / norm : 0.0F;
  }
};
/// Computes the factor of each segment of the sum of directions: the mean norm over the sum's own norm.
struct Lengthen {
  const RadialPiece* pieces;
  const float* norms;   // by piece, of the sum
  const float* totals;  // by piece
  float* factors;       // by segment
  float weights;        // of all ranks
  TERSE_HD void operator()(index_t p) const {
    factors[pieces[p].segment] = pieces[p].plain != 0 ? 1 / weights
                                 : norms[p] > 0       ? totals[p] / weights / norms[p]
                                                      : 0.0F;
  }
};

/// Computes to = to + factor of the segment * from.
struct AddScaled {
  float* to;
  const float* from;
  index_t begin;
  const float* factors;
  float factor = 0;
  using StreamsOf = AddScaled;
  TERSE_HD auto streams() { return updates(to, begin) + reads(from, begin); }
  TERSE_HD void enter(const Piece& piece) { factor = factors[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i) const { to[i - begin] += factor * from[i - begin]; }
};
struct Scale {
  float* values;
  index_t begin;
  const float* factors;
  float factor = 0;
  using StreamsOf = Scale;
  TERSE_HD auto streams() { return updates(values, begin); }
  TERSE_HD void enter(const Piece& piece) { factor = factors[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i) const { values[i - begin] *= factor; }
};

TERSE_NUMERICS_END

}  // namespace detail

/// The mean norm in the mean direction, averaged separately for each segment:
///
///     y = (sum_i w_i ||y_i|| / sum_i w_i) u / ||u||        u = sum_i w_i y_i / ||y_i||
///
/// The mean of W messages with different directions is shorter than the messages, by sqrt(W) if they are orthogonal; this merge
/// has their mean length. One message that is longer than the others affects the length, not the direction. If W messages are
/// equal, the result is that message, up to rounding. The result is 0 if all messages are 0, and if directions cancel out. If they
/// nearly cancel out, u is noise, which still gets the mean length. Segments that `Plain` names, such as embeddings, have the
/// weighted mean:
///
///     DiLoCo<Adam<>, Gathered<Radial<Named<"embedding*">>>>{.topology = {.weight = &tokens}}
///
/// Norms are those of decoded packets; norms below 2^-75, or beyond 2^64, count as 0. Cost: each packet is decoded once; two passes
/// over it, three over the sum; 2 n floats. Sends as many bytes as AllGather. MeanOverSenders is refused: packets are read one by one.
///
/// Source: "Decoupled DiLoCo", arXiv 2604.21428, 2026: radial-directional averaging. Normalizing the mean direction to a
/// length of 1 is our interpretation.
template <SegmentPredicate Plain = detail::NoSegment>
struct Radial {
  static constexpr bool merges = true;
  static constexpr bool waits = false;

  Plain plain{};  ///< the segments that have the plain mean

  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(plain, visit);
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class State {
    static_assert(!detail::is_no_mean<C>(),
                  "terse: Radial reads packets one by one, and MeanOverSenders counts the ranks that sent a "
                  "coordinate: use the compressor without MeanOverSenders, or MedianClip");
    using Context = RoundContext<C, F, E>;
    static constexpr Units each_piece{};

   public:
    TERSE_COLD State(const Context& context, const Radial& merge)
        : decoded_(context.executor, context.plan.whole), sum_(context.plan.whole) {
      std::vector<detail::RadialPiece> pieces;
      const auto& segments = context.layout.segments();
      for (const Range* range : {&context.plan.whole.compressed, &context.plan.whole.dense})
        for (const Piece& piece : range->pieces())
          pieces.push_back({static_cast<std::uint32_t>(piece.segment),
                            merge.plain(segments[static_cast<std::size_t>(piece.segment)]) ? 1U : 0U});
      count_ = static_cast<index_t>(pieces.size());
      pieces_ = buffer<detail::RadialPiece, typename E::memory>(count_);
      upload(view<const detail::RadialPiece>(pieces), pieces_.all());
      norms_ = buffer<float, typename E::memory>(count_);
      totals_ = buffer<float, typename E::memory>(count_);
      factors_ = buffer<float, typename E::memory>(static_cast<index_t>(segments.size()));
    }

    template <class Round, class Consumer>
    void consume(Context& context, Round& round, const std::vector<float>& weights,
                 const Consumer& consumer) {
      const Portion& whole = context.plan.whole;
      E executor = context.executor;
      const auto both = [&](const auto& act) {
        act(whole.compressed);
        act(whole.dense);
      };
      float* const sum = sum_.values.data();
      fill(executor, sum_.values.all(), 0.0F);
      fill(executor, totals_.all(), 0.0F);
      for (int peer = 0; peer < context.size; ++peer) {
        decoded_.load(context, round.packets(context, peer, peer + 1, [](int) { return 1.0F; }));
        measure(executor, whole, decoded_.values());
        for_each_entry(executor, count_,
                       detail::TakeNorms{pieces_.data(), norms_.data(), totals_.data(), factors_.data(),
                                         weights[static_cast<std::size_t>(peer)]});
        both([&](const Range& range) {
          for_each(executor, range,
                   detail::AddScaled{sum, decoded_.values().values.data(), sum_.begin, factors_.data()});
        });
      }
      measure(executor, whole, sum_);
      for_each_entry(executor, count_,
                     detail::Lengthen{pieces_.data(), norms_.data(), totals_.data(), factors_.data(),
                                      std::accumulate(weights.begin(), weights.end(), 0.0F)});
      both([&](const Range& range) {
        for_each(executor, range, detail::Scale{sum, sum_.begin, factors_.data()});
      });
      if constexpr (!C::lossless)
        if (!context.dense_only)
          for_each(executor, whole.compressed, context.mask, sum_.sums(),
                   detail::delivery(context, consumer.compressed, 1));
      for_each(executor, whole.dense, NoMask{}, sum_.sums(),
               detail::dense_delivery(context, consumer.dense, 1));
    }

   private:
    void measure(E executor, const Portion& whole, const detail::PortionValues<E>& values) {
      const auto compressed = static_cast<index_t>(whole.compressed.pieces().size());
      decoded_.template measure<EuclideanNorm>(executor, whole.compressed, each_piece, values,
                                               norms_.all().part(0, compressed));
      decoded_.template measure<EuclideanNorm>(executor, whole.dense, each_piece, values,
                                               norms_.all().part(compressed, count_ - compressed));
    }

    detail::DecodedPacket<C, E> decoded_;
    detail::PortionValues<E> sum_;
    index_t count_ = 0;  // of pieces, compressed ones first
    buffer<detail::RadialPiece, typename E::memory> pieces_;
    buffer<float, typename E::memory> norms_, totals_;  // by piece
    buffer<float, typename E::memory> factors_;         // by segment
  };
};

}  // namespace terse
