// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixed_gradient.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// DecentLaM: decentralized SGD with momentum that adds no bias.
///
///     z_i = x_i - learning_rate g_i
///     g~_i = (x_i - sum_j W_ij z_j) / learning_rate
///     m_i = beta m_i + g~_i
///     x_i = x_i - learning_rate m_i, or with Nesterov x_i - learning_rate (beta m_i + g~_i)
///
/// computed without the division, see MixedGradient. For any beta its fixed point is DSgd's at the same learning rate. Only z
/// is sent. The graph must be fixed and symmetric.
///
///     terse::Optimizer optimizer{terse::DecentLaM<terse::Gossip>{.learning_rate = 0.1F}, transport, layout};
///
/// State: velocity. Wire: one packet to each neighbour, as DmSgd. Source: Yuan et al., "DecentLaM: decentralized
/// momentum SGD for large-batch deep training", ICCV 2021, algorithm 2.
template <class... Ps>
using DecentLaM = MixingFrom<TakesMixing, Policies<MixedGradient>, Ps...>;

}  // namespace terse
