// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

namespace recipes {

/// The hyper-parameters and policies of Adagrad.
template <class C, class F, class T>
struct AdagradOf {
  float learning_rate = 1e-2F;     ///< step size; may change between steps
  float epsilon = 1e-10F;          ///< added to the denominator, outside the root
  float weight_decay = 0;          ///< coefficient, decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< number of first steps in full precision
  C compressor{};                  ///< compressor of the messages
  F error_feedback{};              ///< handling of the compression error
  T topology{};                    ///< communication pattern between ranks

  auto composition() const { return averaging_of(*this, NoMomentum{}, AdagradSum{epsilon}); }
};

}  // namespace recipes

/// Adagrad on the mean gradient g, with decoupled weight decay: s = s + g^2;
/// x = x - learning_rate (g / (sqrt(s) + epsilon) + weight_decay x).
///
/// State: n floats. Wire: as Adam. Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
/// stochastic optimization", JMLR 2011, in the form with a diagonal matrix.
template <class... Ps>
using Adagrad = Sorted<recipes::AdagradOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
