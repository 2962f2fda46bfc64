// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/momentum_correction/balanced_average.hpp"
#include "terse/optimizer/staged.hpp"
#include "terse/preconditioner/frozen_layer_rates.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of OneBitLamb.
template <class C, class F, class T, class P>
struct OneBitLambOf {
  static_assert(detail::check_freezes<P>());

  float learning_rate = 1e-3F;    ///< step size; may change between steps
  float beta1 = 0.9F;             ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;           ///< decay rate of the variances; in [0, 1)
  float epsilon = 1e-8F;          ///< added to the denominator, outside the root
  float weight_decay = 0;         ///< coefficient, decoupled from the gradient
  bool bias_correction = false;   ///< true for Adam's bias correction in the first stage
  float min_coefficient = 0.01F;  ///< smallest coefficient of a layer, > 0
  float max_coefficient = 10;     ///< largest coefficient of a layer
  float coefficient_beta = 0.9F;  ///< decay rate of the coefficients' average over the first stage; in [0, 1)
  float min_factor = 0.5F;        ///< smallest factor on a frozen coefficient, in (0, 1]
  float max_factor = 4;           ///< largest factor on a frozen coefficient, at least 1
  /// Largest relative change of the factor in a step; in [0, 1).
  float factor_threshold = 0.1F;
  P preconditioner{};  ///< frozen variance, and the rule that freezes it
  C compressor{};      ///< compressor of the messages
  F error_feedback{};  ///< handling of the compression error
  T topology{};        ///< communication pattern between ranks

  Staged<AveragingOf<ExponentialAverage, LayerWise<AdamVariance>, Dense, NoErrorFeedback, T>,
         AveragingOf<BalancedAverage, FrozenLayerRates<P>, C, F, T>, Freeze>
  composition() const {
    return {.first = {.learning_rate = learning_rate,
                      .weight_decay = weight_decay,
                      .momentum_correction = {beta1, bias_correction},
                      .preconditioner = {{beta2, epsilon, bias_correction}, min_coefficient, max_coefficient},
                      .topology = topology},
            .second = {.learning_rate = learning_rate,
                       .weight_decay = weight_decay,
                       .momentum_correction = {beta1},
                       .preconditioner = {preconditioner, beta2, epsilon, coefficient_beta, min_factor,
                                          max_factor, factor_threshold},
                       .compressor = compressor,
                       .error_feedback = error_feedback,
                       .topology = topology},
            .when = {preconditioner.freeze}};
  }
};

}  // namespace recipes

/// 1-bit LAMB: LAMB without bias correction until the variance is frozen, and then compressed momentum over the frozen variance.
/// The momentum has the same size in all layers of the message (BalancedAverage). The layer-wise coefficients are also frozen,
/// but slowly follow a fresh variance (FrozenLayerRates). Segments with `compress == false` use LAMB throughout. With
/// `bias_correction` the first stage is LAMB, and the second one begins with its denominators, see OneBitAdam.
///
/// Takes a Compressor (Sign), an ErrorFeedback (Residual), a Topology (ScatterGather) and a Preconditioner with a `freeze`
/// (FrozenVariance).
///
/// State: momentum, variance, fresh variance, error and the step between the sweeps of n floats each, the second error, and
/// four floats per segment. Passes of a compressed step over n: OneBitAdam's, three that read, and the update. Wire: as
/// OneBitAdam. Source: Li et al., "1-bit LAMB: communication efficient large-scale large-batch training with LAMB's
/// convergence speed", HiPC 2022 (arXiv 2104.06069), algorithm 1; `update_clip` is ours, see FrozenVariance.
template <class... Ps>
using OneBitLamb = Sorted<recipes::OneBitLambOf,
                          Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology,
                                PolicyKind::preconditioner>,
                          Policies<Sign, Residual, FrozenVariance>, Ps...>;

}  // namespace terse
