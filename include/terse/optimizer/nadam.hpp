// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Nadam.
template <class C, class F, class T>
struct NadamOf {
  float learning_rate = 2e-3F;     ///< step size; may change between steps
  float beta1 = 0.9F;              ///< decay rate of the momentum; in [0, 1)
  float beta2 = 0.999F;            ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< added to the denominator, outside the root
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  float momentum_decay = 0.004F;   ///< speed of the momentum factor's rise to beta1, see NesterovAverage
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const {
    return averaging_of(*this, NesterovAverage{beta1, momentum_decay}, AdamVariance{beta2, epsilon});
  }
};

}  // namespace recipes

/// NAdam: Adam with Nesterov's momentum, see NesterovAverage, and with decoupled weight decay:
///
///     x = x - learning_rate (d / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay x)
///     d = mu_(t+1) m / (1 - mu_1 ... mu_(t+1)) + (1 - mu_t) g / (1 - mu_1 ... mu_t)
///     mu_t = beta1 (1 - 0.96^(momentum_decay t) / 2)
///
/// g is the mean gradient, m and v are Adam's. Steps and defaults are those of PyTorch's NAdam with decoupled weight decay.
/// Without the schedule (mu_t = beta1):
///
///     Nadam<>{.momentum_decay = NesterovAverage::at_once}
///
/// State: 2 n floats. Wire: as Adam. Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016,
/// algorithm 2; torch.optim.NAdam.
template <class... Ps>
using Nadam = Sorted<recipes::NadamOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
