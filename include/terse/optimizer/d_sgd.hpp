// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Decentralized SGD without momentum, adapt-then-combine: x_i = sum_j W_ij (x_j - learning_rate g_j).
///
/// State: none. Wire: one packet to each neighbour. At rest x_i differs from the optimum by O(learning_rate).
/// Source: Nedic and Ozdaglar 2009; Chen and Sayed 2012 (ATC diffusion); Lian et al., NeurIPS 2017.
template <class... Ps>
using DSgd = MixingFrom<TakesMixing, Policies<AdaptThenCombine<GradientDirection>>, Ps...>;

/// The same in the order of consensus (AWC, D-PSGD): x_i = sum_j W_ij x_j - learning_rate g_i(x_i). Messages travel
/// while the gradient is computed, between `begin(parameters)` and `step`.
template <class... Ps>
using AwcDSgd = MixingFrom<TakesMixing, Policies<AdaptWithCombine<GradientDirection>>, Ps...>;

/// The same with the gradient at the mixture (CTA diffusion): y_i = sum_j W_ij x_j, x_i = y_i - learning_rate
/// g_i(y_i). Each step is `begin(parameters)`, which leaves y there, the gradient, and `step`.
template <class... Ps>
using CtaDSgd = MixingFrom<TakesMixing, Policies<CombineThenAdapt>, Ps...>;

}  // namespace terse
