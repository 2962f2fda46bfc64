// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/momentum_residual.hpp"
#include "terse/exchange/low_rank_round.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/on_hidden.hpp"
#include "terse/preconditioner/elementwise.hpp"

namespace terse {

/// See Dion.
template <class C, class F, class T>
struct DionOf {
  static_assert(
      requires(F feedback) { feedback.momentum; },
      "terse: Dion's momentum is an error feedback with a momentum: MomentumResidual");

  float learning_rate = 0.01F;  ///< factor of the step; may change from step to step
  float weight_decay = 0;       ///< decoupled from the gradient
  float momentum = 0.95F;       ///< of hidden matrices; error_feedback.momentum is this one
  float beta1 = 0.9F;           ///< these four are Adam's, of all other segments
  float beta2 = 0.999F;         ///< of the variance; in [0, 1)
  float epsilon = 1e-8F;        ///< outside the root
  bool bias_correction = true;  ///< of Adam's averages
  C compressor{};               ///< of messages
  F error_feedback{};           ///< what becomes of what compression loses
  T topology{};                 ///< the way messages take between ranks
  static constexpr std::uint64_t warmup_steps = 0;

  auto composition() const {
    auto averaging =
        averaging_of(*this, OnHidden<NoMomentum, ExponentialAverage>{{{}, {beta1, bias_correction}}},
                     OnHidden<NoPreconditioner, AdamVariance>{{{}, {beta2, epsilon, bias_correction}}, {}});
    averaging.error_feedback.momentum = momentum;
    return averaging;
  }
};

/// Dion: of each rank's momentum M_i of a hidden matrix, see Segment::hidden, of rows x columns, two factors of R columns travel,
/// and all step along the orthonormal direction that they span:
///
///     B_i = M_i + g_i        P = orthonormalize(mean B_i Q)        R_i = B_i^T P        M_i = B_i - (1 - momentum) P R_i^T
///     Q = mean R_i, its columns divided by their lengths
///     x = x - learning_rate (sqrt(rows / columns) P Q^T + weight_decay x)
///
/// and Adam on all other segments, whose gradients travel dense: give these a learning_rate_scale, since Dion's rates are Muon's,
/// 0.01 to 0.02. A hidden matrix has (rows + columns) R < rows columns.
///
///     Dion<16>{.learning_rate = 0.01F}
///
/// Wire: as PowerSgd<R>. State: n floats M_i, each rank's own, 2 n of Adam's, which hidden matrices don't touch, and R columns floats for a
/// matrix. Source: Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: distributed orthonormalized updates",
/// 2025 (arXiv 2504.05295), algorithm 1.
template <int R = 16, class... Ps>
using Dion = Sorted<DionOf, TakesMeans, Policies<DionDirection<R>, MomentumResidual>, Ps...>;

}  // namespace terse
