// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/doubly_averaged.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Decentralized momentum SGD, adapt-then-combine, with local momentum:
///
///     m_i = beta m_i + g_i        x_i = sum_j W_ij (x_j - learning_rate m_j)
///
/// Its fixed point is DSgd's at learning_rate / (1 - beta). This bias matters with large batches, where gradients are accurate
/// and rates are high. State: momentum. Wire: one packet to each neighbour. Source: Assran et al., ICML 2019; Yuan et al.,
/// ICCV 2021, algorithm 1.
template <class... Ps>
using DmSgd = MixingFrom<TakesMixing, Policies<AdaptThenCombine<MomentumDirection>>, Ps...>;

/// DmSgd that also mixes momentum. Wire: two packets in one message. Bias: DSgd's at learning_rate / (1 - beta lambda) on the
/// mode of eigenvalue lambda. Source: Yu, Jin and Yang, ICML 2019, algorithm 2.
template <class... Ps>
using DaDmSgd = MixingFrom<TakesMixing, Policies<DoublyAveraged>, Ps...>;

/// DmSgd in the order of consensus: x_i = sum_j W_ij x_j - learning_rate m_i. Communication overlaps with the gradient's
/// computation, between `begin(parameters)` and `step`. Bias: AwcDSgd's at learning_rate / (1 - beta), even if W averages
/// exactly.
template <class... Ps>
using AwcDmSgd = MixingFrom<TakesMixing, Policies<AdaptWithCombine<MomentumDirection>>, Ps...>;

}  // namespace terse
