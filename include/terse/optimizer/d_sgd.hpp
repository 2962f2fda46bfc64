// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Decentralized SGD without momentum, adapt-then-combine: x_i = sum_j W_ij (x_j - learning_rate g_j).
///
/// State: none. Wire: one packet to each neighbour. At the fixed point x_i differs from the optimum by O(learning_rate).
/// Source: Nedic and Ozdaglar 2009; Chen and Sayed 2012 (ATC diffusion); Lian et al., NeurIPS 2017.
template <class... Ps>
using DSgd = MixingFrom<TakesMixing, Policies<AdaptThenCombine<GradientDirection>>, Ps...>;

/// DSgd in the order of consensus (AWC, D-PSGD): x_i = sum_j W_ij x_j - learning_rate g_i(x_i). Communication overlaps with
/// the gradient's computation, between `begin(parameters)` and `step`.
template <class... Ps>
using AwcDSgd = MixingFrom<TakesMixing, Policies<AdaptWithCombine<GradientDirection>>, Ps...>;

/// DSgd with the gradient at the mixture (CTA diffusion): y_i = sum_j W_ij x_j, x_i = y_i - learning_rate g_i(y_i). In each
/// step, call `begin(parameters)`, which writes y there, compute the gradient at y, and call `step`.
template <class... Ps>
using CtaDSgd = MixingFrom<TakesMixing, Policies<CombineThenAdapt>, Ps...>;

}  // namespace terse
