// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

/// See Lars.
template <class C, class F, class T>
struct LarsOf {
  float learning_rate = 1;         ///< factor of the step; may change from step to step
  float momentum = 0.9F;           ///< in [0, 1)
  bool nesterov = false;           ///< whether the step looks ahead along the momentum
  float weight_decay = 0;          ///< coupled: part of the gradient
  float trust = 1e-3F;             ///< the paper's eta
  float epsilon = 0;               ///< in the denominator of a layer's rate
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const {
    return averaging_of(*this, NoMomentum{}, LarsRates{momentum, nesterov, trust, epsilon});
  }
};

/// Parallel momentum SGD with layer-wise rates (PmSGD + LARS), on the mean gradient, see LarsRates.
///
/// State: velocity, and n floats for the mean. Passes beside the average's: two that read for the norms, one for the
/// update. Wire: as MomentumSgd. Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks",
/// 2017, algorithm 1.
template <class... Ps>
using Lars = Sorted<LarsOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
