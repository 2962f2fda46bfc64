// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of RmsProp.
template <class C, class F, class T>
struct RmsPropOf {
  float learning_rate = 1e-3F;     ///< step size; may change between steps
  float beta = 0.99F;              ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;           ///< added to the denominator, outside the root
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const { return averaging_of(*this, NoMomentum{}, AdamVariance{beta, epsilon, false}); }
};

}  // namespace recipes

/// RMSProp on the mean gradient g, with decoupled weight decay: v = beta v + (1 - beta) g^2;
/// x = x - learning_rate (g / (sqrt(v) + epsilon) + weight_decay x).
///
/// State: n floats. Wire: as Adam. Source: Tieleman and Hinton, "Lecture 6.5 - rmsprop", 2012.
template <class... Ps>
using RmsProp = Sorted<recipes::RmsPropOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
