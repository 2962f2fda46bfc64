// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/moniqua.hpp"
#include "terse/exchange/keyed_mixing.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Moniqua: decentralized SGD whose packets hold parameters modulo a number, since the neighbours' own are near,
///
///     x_i = x_i + sum_j W_ij (y_j - y_i) - learning_rate d_i
///
/// y_j what rank j's packet means beside x_i, and d_i the gradient or, by Direction, momentum. C may be Lattice, too.
/// A packet is known before the gradient is, see `begin`. Keeps the mean of the ranks; there is no state but
/// momentum, no error feedback and no consensus rate to tune (it may stay 1). compressor.bound must exceed the
/// largest |x_i - x_j| of neighbours in any step, some learning_rate times gradient over 1 - lambda_2: where it
/// doesn't the step throws wire_error and leaves the parameters.
///
///     Optimizer optimizer{MoniquaSgd<>{.learning_rate = 0.05F, .compressor = {.bound = 0.1F}}, transport, layout};
///
/// Wire: n Bits / 8 bytes, and 8 for each 4096 elements, to each neighbour. Source: Lu and De Sa, "Moniqua: modulo
/// quantized communication in decentralized SGD", ICML 2020, algorithm 1.
template <class... Ps>
using MoniquaSgd = MixingFrom<
    TakesDirection,
    Policies<AdaptWithCombine<PickPolicy<PolicyKind::local_direction, GradientDirection, Ps...>>, Moniqua<8>>,
    Ps...>;

}  // namespace terse
