// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/compressor/concept.hpp"
#include "terse/executor/matrix.hpp"

namespace terse {

namespace detail {

template <int R, class P, class E, bool Direction = false>
class LowRankRound;

}  // namespace detail

/// PowerSGD's compressor: each matrix M_i = message_i + error_i, of rows x columns, becomes two factors of R
/// columns. They come from one step of a power iteration that starts from the last round's Q:
///
///     P   = mean_i M_i Q                  rows x R
///     P   = orthonormalize(P)             modified Gram-Schmidt, the same on every rank
///     Q_i = M_i^T P                       columns x R
///     e_i = M_i - P Q_i^T                 against the rank's own reconstruction
///     Q   = mean_i Q_i                    mean: P Q^T = P P^T mean_i M_i
///
/// A segment of shape {a, b, c, ...} is a matrix of a rows and b c ... columns. Scalars and vectors, and matrices that
/// the factors would hardly make smaller, are sent dense, with the first mean. If a column of P is 0 or depends on
/// previous ones, it becomes 0, and Q keeps its old column there. So a round of zeros does not end all rounds.
///
/// Wire: R rows and R columns floats for a matrix. Each factor goes through an exact mean, which takes two more phases
/// than a quantizer. Passes over n: message + error, M Q, M^T P, error, mean. State: Q, R columns floats for a matrix,
/// in addition to the error feedback's. Temporary memory: both factors and the dense part once more, and their packets.
///
/// Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
/// Optimization", NeurIPS 2019 (arXiv 1905.13727), algorithms 1 and 2.
template <int R>
struct LowRank {
  static_assert(R >= 1 && R <= 64, "terse: LowRank<R> takes 1 to 64 columns");

  static constexpr bool lossless = false;
  static constexpr bool unbiased = false;
  /// P P^T projects, so the error is never longer than M, but P comes from the mean and may miss all of one rank's M.
  static constexpr bool contractive = false;
  static constexpr bool tracks = true;

  /// The round over an exact topology, see exchange/low_rank_round.hpp, which programs that use it must include.
  template <class F, class P, class E>
  using Round = detail::LowRankRound<R, P, E>;

  /// The compression factor that a matrix must exceed to be compressed.
  float min_compression = 2;
  /// The seed of the first round's Q, equal on all ranks.
  std::uint32_t seed = 0;

  void check() const {
    if (!(min_compression > 0))
      throw usage_error("LowRank's min_compression must be positive, not " + std::to_string(min_compression));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("min_compression", static_cast<double>(min_compression));
    visit("low_rank_seed", static_cast<double>(seed));
  }

  /// Checks whether a segment is compressed, which `Segment::compress` may exclude.
  bool takes(const Segment& segment) const {
    if (segment.shape.size() < 2 || segment.count == 0) return false;
    const MatrixShape shape = detail::matrix_shape(segment);
    return static_cast<double>(shape.rows + shape.columns) * R * static_cast<double>(min_compression) <
           static_cast<double>(segment.count);
  }

  /// Returns 0: factors have separate packets, outside the outer plan.
  index_t wire_bytes(const Range&) const { return 0; }
  template <Executor E>
  struct Workspace {
    Workspace(E, const LowRank&, const Range&) {}
  };
};

}  // namespace terse
