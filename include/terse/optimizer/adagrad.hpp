// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

/// See Adagrad.
template <class C, class F, class T>
struct AdagradOf {
  float learning_rate = 1e-2F;     ///< factor of the step; may change from step to step
  float epsilon = 1e-10F;          ///< outside the root
  float weight_decay = 0;          ///< decoupled from the gradient
  std::uint64_t warmup_steps = 0;  ///< the first steps, in full precision
  C compressor{};                  ///< of messages
  F error_feedback{};              ///< what becomes of what compression loses
  T topology{};                    ///< the way messages take between ranks

  auto composition() const { return averaging_of(*this, NoMomentum{}, AdagradSum{epsilon}); }
};

/// Adagrad on the mean gradient g, with decoupled weight decay: s = s + g^2;
/// x = x - learning_rate (g / (sqrt(s) + epsilon) + weight_decay x).
///
/// State: n floats. Wire: as Adam. Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
/// stochastic optimization", JMLR 2011, with a diagonal matrix.
template <class... Ps>
using Adagrad = Sorted<AdagradOf, TakesMeans, Policies<>, Ps...>;

}  // namespace terse
