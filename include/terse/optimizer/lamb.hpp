// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

/// See Lamb.
template <class C, class F, class T>
struct LambOf {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;  ///< outside the root
  float weight_decay = 0;
  float min_coefficient = 0.01F;
  float max_coefficient = 10;
  bool bias_correction = true;
  std::uint64_t warmup_steps = 0;
  C compressor{};
  F error_feedback{};
  T topology{};

  auto composition() const {
    return averaging_of(
        *this, ExponentialAverage{beta1, bias_correction},
        LayerWise<AdamVariance>{{beta2, epsilon, bias_correction}, min_coefficient, max_coefficient});
  }
};

/// LAMB: Adam with layer-wise rates, on the mean gradient. With u Adam's step without weight decay, for each segment
///
///     c = clamp(||x|| / ||u + weight_decay x||, min_coefficient, max_coefficient)       1 where a norm is 0
///     x = x - learning_rate c (u + weight_decay x)
///
/// State: 3 n floats, one of them u between the sweeps. Passes beside the average's: two that read for the norms, one for
/// the update. Wire: as Adam. Source: You et al., "Large batch optimization for deep learning: training BERT in 76
/// minutes", ICLR 2020, algorithm 2.
template <class... Ps>
using Lamb = Sorted<LambOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
