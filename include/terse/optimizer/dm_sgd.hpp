// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/doubly_averaged.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Decentralized momentum SGD, adapt-then-combine, with momentum that stays on its rank:
///
///     m_i = beta m_i + g_i        x_i = sum_j W_ij (x_j - learning_rate m_j)
///
/// At rest it stands where DSgd would at learning_rate / (1 - beta): with large batches, where gradients are exact
/// and rates are high, that bias shows. State: momentum. Wire: one packet to each neighbour. Source: Assran et al.,
/// ICML 2019; Yuan et al., ICCV 2021, algorithm 1.
template <class... Ps>
using DmSgd = MixingFrom<TakesMixing, Policies<AdaptThenCombine<MomentumDirection>>, Ps...>;

/// DmSgd in which momentum is mixed, too. Wire: two packets in one message. Bias: that of DSgd at learning_rate / (1
/// - beta lambda) on the mode of eigenvalue lambda. Source: Yu, Jin and Yang, ICML 2019, algorithm 2.
template <class... Ps>
using DaDmSgd = MixingFrom<TakesMixing, Policies<DoublyAveraged>, Ps...>;

/// DmSgd in the order of consensus: x_i = sum_j W_ij x_j - learning_rate m_i. Messages travel while the gradient is
/// computed, between `begin(parameters)` and `step`. Bias: that of AwcDSgd at learning_rate / (1 - beta), even where
/// W averages exactly.
template <class... Ps>
using AwcDmSgd = MixingFrom<TakesMixing, Policies<AdaptWithCombine<MomentumDirection>>, Ps...>;

}  // namespace terse
