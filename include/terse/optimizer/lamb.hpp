// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Lamb.
template <class C, class F, class T>
struct LambOf {
  float learning_rate = 1e-3F;     ///< step size; may change between steps
  float beta1 = 0.9F;              ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;            ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< added to the denominator, outside the root
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  float min_coefficient = 0.01F;   ///< smallest coefficient of a layer, > 0
  float max_coefficient = 10;      ///< largest coefficient of a layer
  bool bias_correction = true;     ///< true for Adam's bias correction
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(
        *this, ExponentialAverage{beta1, bias_correction},
        LayerWise<AdamVariance>{{beta2, epsilon, bias_correction}, min_coefficient, max_coefficient});
  }
};

}  // namespace recipes

/// LAMB: Adam with layer-wise rates, on the mean gradient. Let u be Adam's step without weight decay. For each
/// segment
///
///     c = clamp(||x|| / ||u + weight_decay x||, min_coefficient, max_coefficient)       1 where a norm is 0
///     x = x - learning_rate c (u + weight_decay x)
///
/// State: 3 n floats, n of them for u between the sweeps. Passes, in addition to those of the average: two that read for the
/// norms, one for the update. Wire: as Adam. Source: You et al., "Large batch optimization for deep learning: training BERT
/// in 76 minutes", ICLR 2020, algorithm 2.
template <class... Ps>
using Lamb = Sorted<recipes::LambOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
