// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/staged.hpp"
#include "terse/preconditioner/frozen_variance.hpp"

namespace terse {

/// See OneBitAdam.
template <class C, class F, class T, class P>
struct OneBitAdamOf {
  static_assert(check_freezes<P>());

  float learning_rate = 1e-3F;   ///< factor of the step; may change from step to step
  float beta1 = 0.9F;            ///< of the momentum; in [0, 1)
  float beta2 = 0.999F;          ///< of the variance; in [0, 1)
  float epsilon = 1e-8F;         ///< outside the root
  float weight_decay = 0;        ///< decoupled from the gradient
  bool bias_correction = false;  ///< whether the first stage's averages make up for their start from 0
  P preconditioner{};            ///< the frozen variance, and when it freezes
  C compressor{};                ///< of messages
  F error_feedback{};            ///< what becomes of what compression loses
  T topology{};                  ///< the way messages take between ranks

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

/// 1-bit Adam: Adam without bias correction until the variance is frozen, then momentum, compressed with
/// error feedback, over the frozen variance.
///
///     before the freeze                  after it, d = 1 / (sqrt(v) + epsilon)
///     g = mean_i g_i                     m_i = beta1 m + (1 - beta1) g_i
///     m = beta1 m + (1 - beta1) g        m = mean_i of compressed (m_i + e_i), by the topology
///     v = beta2 v + (1 - beta2) g^2
///     u = m / (sqrt(v) + epsilon)        u = clamp(m d, -update_clip, update_clip)
///     x = x - learning_rate (u + weight_decay x)
///
/// The paper corrects no bias: v_t is 1 - beta2^t of what it should be, steps of the first stage are up to 6.6 times Adam's, and those
/// after a freeze at step T are 1 / sqrt(1 - beta2^T) times as long as they should be: 1.96 times for T = 300, 1.03 for 3,000. With
/// `bias_correction` the first stage is Adam, and d = 1 / (sqrt(v / (1 - beta2^T)) + epsilon).
///
/// Segments with `compress == false` go on with the left column, their gradients in the same packets. Takes a Compressor
/// (Sign), an ErrorFeedback (Residual), a Topology (ScatterGather) and a Preconditioner with a `freeze` (FrozenVariance).
///
/// Passes of a compressed step over n on a host: momentum + error + scale + bits, and decode + update; one and two over n / W on a
/// chunk's owner. Devices, and compressors with other codes than signs, write bits and error in a pass of their own unless
/// PerBlock. Wire: see the topology. State: momentum,
/// variance and error of n floats each, n / W more for ScatterGather's second error, n / 32 words of masks;
/// beside it packets of n floats, three times, for the full-precision stage.
///
/// Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
/// Speed", ICML 2021 (arXiv 2102.02888), algorithm 1; `update_clip` is ours, see FrozenVariance.
template <class... Ps>
using OneBitAdam = Sorted<OneBitAdamOf,
                          Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology,
                                PolicyKind::preconditioner>,
                          Policies<Sign, Residual, FrozenVariance>, Ps...>;

}  // namespace terse
