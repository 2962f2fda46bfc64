// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/moniqua.hpp"
#include "terse/exchange/keyed_mixing.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Moniqua: decentralized SGD whose packets contain parameters modulo a number; neighbours decode them near their own parameters:
///
///     x_i = x_i + sum_j W_ij (y_j - y_i) - learning_rate d_i
///
/// y_j is rank j's packet as decoded near x_i, and d_i the gradient or, by Direction, momentum. C may also be Lattice. A packet is
/// known before the gradient, see `begin`. Keeps the mean of the ranks. The only state is momentum; there is no error feedback and
/// no consensus rate to tune (it may stay 1). compressor.bound must exceed the largest |x_i - x_j| of neighbours in any step,
/// which is about learning_rate times gradient over 1 - lambda_2. Otherwise the step throws wire_error and leaves the parameters
/// unchanged.
///
///     Optimizer optimizer{MoniquaSgd<>{.learning_rate = 0.05F, .compressor = {.bound = 0.1F}}, transport, layout};
///
/// Wire: n Bits / 8 bytes, and 8 for every 4096 elements, to each neighbour. Source: Lu and De Sa, "Moniqua: modulo
/// quantized communication in decentralized SGD", ICML 2020, algorithm 1.
template <class... Ps>
using MoniquaSgd = MixingFrom<
    TakesDirection,
    Policies<AdaptWithCombine<detail::PickPolicy<PolicyKind::local_direction, GradientDirection, Ps...>>,
             Moniqua<8>>,
    Ps...>;

}  // namespace terse
