// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// See Lion.
template <class C, class F, class T>
struct LionOf {
  float learning_rate = 1e-4F;     ///< factor of the step; may change from step to step
  float beta1 = 0.9F;              ///< of the direction; in [0, 1)
  float beta2 = 0.99F;             ///< of the momentum that is kept; in [0, 1)
  float weight_decay = 0;          ///< decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const { return averaging_of(*this, LionInterpolation{beta1, beta2}, SignStep{}); }
};

/// Lion: steps of one length along the sign of an interpolated momentum, with decoupled weight decay:
///
///     x = x - learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay x)          m = beta2 m + (1 - beta2) g
///
/// g is the mean gradient. Rates are a tenth to a third of Adam's, weight decay as much larger. State: n floats. Wire: as
/// Adam. Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2.
template <class... Ps>
using Lion = Sorted<LionOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
