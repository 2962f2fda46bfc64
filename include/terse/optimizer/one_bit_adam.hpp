// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/staged.hpp"
#include "terse/preconditioner/frozen_variance.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of OneBitAdam.
template <class C, class F, class T, class P>
struct OneBitAdamOf {
  static_assert(detail::check_freezes<P>());

  float learning_rate = 1e-3F;   ///< step size; may change between steps
  float beta1 = 0.9F;            ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;          ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;         ///< added to the denominator, outside the root
  float weight_decay = 0;        ///< coefficient, decoupled from the gradient
  bool bias_correction = false;  ///< true for Adam's bias correction in the first stage
  P preconditioner{};            ///< frozen variance, and the rule that freezes it
  C compressor{};                ///< compressor of the messages
  F error_feedback{};            ///< handling of the compression error
  T topology{};                  ///< communication pattern between ranks

  Staged<AveragingOf<ExponentialAverage, AdamVariance, Dense, NoErrorFeedback, T>,
         AveragingOf<LocalAverage, P, C, F, T>, Freeze>
  composition() const {
    return {.first = {.learning_rate = learning_rate,
                      .weight_decay = weight_decay,
                      .momentum_correction = {beta1, bias_correction},
                      .preconditioner = {beta2, epsilon, bias_correction},
                      .topology = topology},
            .second = {.learning_rate = learning_rate,
                       .weight_decay = weight_decay,
                       .momentum_correction = {beta1},
                       .preconditioner = preconditioner,
                       .compressor = compressor,
                       .error_feedback = error_feedback,
                       .topology = topology},
            .when = {preconditioner.freeze}};
  }
};

}  // namespace recipes

/// 1-bit Adam: Adam without bias correction until the variance is frozen, and then compressed momentum with error feedback
/// over the frozen variance.
///
///     before the freeze                  after it, d = 1 / (sqrt(v) + epsilon)
///     g = mean_i g_i                     m_i = beta1 m + (1 - beta1) g_i
///     m = beta1 m + (1 - beta1) g        m = mean_i of compressed (m_i + e_i), by the topology
///     v = beta2 v + (1 - beta2) g^2
///     u = m / (sqrt(v) + epsilon)        u = clamp(m d, -update_clip, update_clip)
///     x = x - learning_rate (u + weight_decay x)
///
/// The paper has no bias correction, so v_t is too small by the factor 1 - beta2^t. Steps of the first stage are up to 6.6
/// times Adam's. Steps after a freeze at step T are too long by 1 / sqrt(1 - beta2^T): 1.96 times for T = 300, 1.03 for 3,000.
/// With `bias_correction` the first stage is Adam, and d = 1 / (sqrt(v / (1 - beta2^T)) + epsilon).
///
/// Segments with `compress == false` follow the left column throughout, and their gradients are sent in the same packets.
/// Takes a Compressor (Sign), an ErrorFeedback (Residual), a Topology (ScatterGather) and a Preconditioner with a `freeze`
/// (FrozenVariance).
///
/// Passes of a compressed step: two over n (momentum + error + scale + bits; decode + update), and on a chunk's owner one over n / W. Compressors with
/// other codes than signs write bits and error in a separate pass unless PerBlock; then the owner has two. Wire: see the topology. State: momentum,
/// variance and error of n floats each, n / W more for ScatterGather's second error, and n / 32 words of masks. The full-precision stage has 3 n more
/// floats of packets.
///
/// Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
/// Speed", ICML 2021 (arXiv 2102.02888), algorithm 1; `update_clip` is ours, see FrozenVariance.
template <class... Ps>
using OneBitAdam = Sorted<recipes::OneBitAdamOf,
                          Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology,
                                PolicyKind::preconditioner>,
                          Policies<Sign, Residual, FrozenVariance>, Ps...>;

}  // namespace terse
