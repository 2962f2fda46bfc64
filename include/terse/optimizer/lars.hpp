// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"
#include "terse/preconditioner/layer_wise.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Lars.
template <class C, class F, class T>
struct LarsOf {
  float learning_rate = 1;         ///< step size; may change between steps
  float momentum = 0.9F;           ///< momentum factor; in [0, 1)
  bool nesterov = false;           ///< true for Nesterov momentum
  float weight_decay = 0;          ///< coefficient; coupled: part of the gradient
  float trust = 1e-3F;             ///< the paper's eta
  float epsilon = 0;               ///< added to the denominator of a layer's rate
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(*this, NoMomentum{}, LarsRates{momentum, nesterov, trust, epsilon});
  }
};

}  // namespace recipes

/// Parallel momentum SGD with layer-wise rates (PmSGD + LARS), on the mean gradient, see LarsRates.
///
/// State: n floats of velocity, and n for the mean. Passes, in addition to those of the average: two that read for the norms,
/// one for the update. Wire: as MomentumSgd. Source: You, Gitman and Ginsburg, "Large batch training of convolutional
/// networks", 2017, algorithm 1.
template <class... Ps>
using Lars = Sorted<recipes::LarsOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
