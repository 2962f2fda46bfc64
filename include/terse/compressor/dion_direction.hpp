// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/low_rank.hpp"

namespace terse {

/// The factors of LowRank<R> of hidden matrices, as the direction of a step: all ranks decode
///
///     sqrt(rows / columns) P Q^T     P^T P = I, and Q is the mean of M_i^T P with columns of length 1
///
/// instead of the mean P P^T mean_i M_i. A rank's error feedback receives this rank's P Q_i^T, as under LowRank, with
/// the matrix's own norm. A column of P that is 0 is left out, so ||P Q^T||_F = sqrt(R), or less for mean matrices of
/// a lower rank.
///
/// Segments that are not marked as hidden are sent dense. A hidden segment must not be sent dense, because R columns
/// don't make it smaller or because it is excluded from compression. It is rejected, since its gradient would be a
/// direction of another norm.
///
/// Wire, state and passes: those of LowRank. Source: Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: distributed
/// orthonormalized updates", 2025 (arXiv 2504.05295).
template <int R>
struct DionDirection {
  static constexpr bool lossless = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = false;
  static constexpr bool tracks = true;

  template <class F, class P, class E>
  using Round = detail::LowRankRound<R, P, E, true>;

  /// The seed of the first round's Q, equal on all ranks.
  std::uint32_t seed = 0;

  void check() const {}
  template <class Visit>
  void settings(Visit&& visit) const {
    factors().settings(visit);
  }
  bool takes(const Segment& segment) const { return segment.hidden && factors().takes(segment); }
  index_t wire_bytes(const Range& range) const { return factors().wire_bytes(range); }
  template <Executor E>
  struct Workspace {
    Workspace(E, const DionDirection&, const Range&) {}
  };

 private:
  LowRank<R> factors() const { return {.min_compression = 1, .seed = seed}; }
};

namespace detail {

inline void require_directions(bool any) {
  if (!any)
    throw usage_error(
        "no segment of the layout is marked as hidden, and this compressor's directions are of hidden "
        "matrices: set Segment::hidden for those between the input and the output");
}

}  // namespace detail

}  // namespace terse
