// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// See Nadam.
template <class C, class F, class T>
struct NadamOf {
  float learning_rate = 1e-3F;     ///< factor of the step; may change from step to step
  float beta1 = 0.9F;              ///< of the momentum; in [0, 1)
  float beta2 = 0.999F;            ///< of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< outside the root
  float weight_decay = 0;          ///< decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const {
    return averaging_of(*this, NesterovAverage{beta1}, AdamVariance{beta2, epsilon});
  }
};

/// NAdam: Adam with Nesterov's momentum, see NesterovAverage, and with decoupled weight decay:
///
///     x = x - learning_rate (d / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay x)
///     d = beta1 m / (1 - beta1^(t+1)) + (1 - beta1) g / (1 - beta1^t)
///
/// g is the mean gradient, m and v are Adam's. The paper's schedule of beta1 is left out. State: 2 n floats. Wire: as Adam.
/// Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016, algorithm 2.
template <class... Ps>
using Nadam = Sorted<NadamOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
