// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

/// See Lars.
template <class C, class F, class T>
struct LarsOf {
  float learning_rate = 1;
  float momentum = 0.9F;
  bool nesterov = false;
  float weight_decay = 0;  ///< coupled: part of the gradient
  float trust = 1e-3F;     ///< the paper's eta
  float epsilon = 1e-9F;
  std::uint64_t warmup_steps = 0;
  C compressor{};
  F error_feedback{};
  T topology{};

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
