// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/error_feedback/momentum_residual.hpp"
#include "terse/exchange/low_rank_round.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/for_hidden_matrices.hpp"
#include "terse/preconditioner/elementwise.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Dion.
template <class C, class F, class T>
struct DionOf {
  static_assert(
      requires(F feedback) { feedback.momentum; },
      "terse: Dion's momentum is an error feedback with a momentum: MomentumResidual");

  float learning_rate = 0.01F;  ///< step size; may change between steps
  float weight_decay = 0;       ///< coefficient, decoupled from the gradient
  float momentum = 0.95F;       ///< momentum factor of hidden matrices; replaces error_feedback.momentum
  float beta1 = 0.9F;           ///< for all other segments, as the next three: Adam's
  float beta2 = 0.999F;         ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;        ///< added to the denominator, outside the root
  bool bias_correction = true;  ///< true for Adam's bias correction
  C compressor{};               ///< compressor of the messages
  F error_feedback{};           ///< handling of the compression error
  T topology{};                 ///< communication pattern between ranks
  static constexpr std::uint64_t warmup_steps = 0;

  auto composition() const {
    auto averaging = averaging_of(
        *this, ForHiddenMatrices<NoMomentum, ExponentialAverage>{{{}, {beta1, bias_correction}}},
        ForHiddenMatrices<NoPreconditioner, AdamVariance>{{{}, {beta2, epsilon, bias_correction}}, {}});
    averaging.error_feedback.momentum = momentum;
    return averaging;
  }
};

}  // namespace recipes

/// Dion: each rank sends two factors of R columns of its momentum M_i for each hidden matrix of rows x columns, see
/// Segment::hidden. All ranks step along the orthonormal direction that the factors span:
///
///     B_i = M_i + g_i        P = orthonormalize(mean B_i Q)        R_i = B_i^T P        M_i = B_i - (1 - momentum) P R_i^T
///     Q = mean R_i, its columns divided by their lengths
///     x = x - learning_rate (sqrt(rows / columns) P Q^T + weight_decay x)
///
/// All other segments use Adam, and their gradients are sent dense. Give these a learning_rate_scale, since Dion's rates are
/// Muon's, 0.01 to 0.02. A hidden matrix must satisfy (rows + columns) R < rows columns.
///
///     Dion<16>{.learning_rate = 0.01F}
///
/// Wire: as PowerSgd<R>. State: n floats M_i, which differ between ranks; 2 n of Adam's, unused for hidden matrices; and R
/// columns floats for each matrix. Source: Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: distributed
/// orthonormalized updates", 2025 (arXiv 2504.05295), algorithm 1.
template <int R = 16, class... Ps>
using Dion = Sorted<recipes::DionOf, TakesMeans, Policies<DionDirection<R>, MomentumResidual>, Ps...>;

}  // namespace terse
