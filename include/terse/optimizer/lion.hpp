// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Lion.
template <class C, class F, class T>
struct LionOf {
  float learning_rate = 1e-4F;     ///< step size; may change between steps
  float beta1 = 0.9F;              ///< decay rate in the direction; in [0, 1)
  float beta2 = 0.99F;             ///< decay rate of the momentum that is kept; in [0, 1)
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const { return averaging_of(*this, LionInterpolation{beta1, beta2}, SignStep{}); }
};

}  // namespace recipes

/// Lion: steps along the sign of an interpolated momentum, with decoupled weight decay:
///
///     x = x - learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay x)          m = beta2 m + (1 - beta2) g
///
/// g is the mean gradient. Compared with Adam, learning rates are 3 to 10 times smaller, and weight decay is larger by the
/// same factor. State: n floats. Wire: as Adam. Source: Chen et al., "Symbolic discovery of optimization algorithms",
/// NeurIPS 2023, algorithm 2.
template <class... Ps>
using Lion = Sorted<recipes::LionOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
