// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/tracking.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Gradient tracking, adapt-then-combine: see GradientTracker. Converges to the exact optimum; with exact averages it is
/// parallel SGD. State: tracker. Wire: two packets in one message to each neighbour.
/// Source: Xu, Zhu, Soh and Xie, CDC 2015; Di Lorenzo and Scutari, IEEE TSIPN 2016.
template <class... Ps>
using GradientTracking = MixingFrom<TakesMixing, Policies<GradientTracker>, Ps...>;

/// Momentum tracking: see MomentumTracker. Converges to the exact optimum for every beta. State: momentum and
/// correction. Wire: two packets in one message to each neighbour. Source: Takezawa et al., "Momentum tracking:
/// momentum acceleration for decentralized deep learning on heterogeneous data", TMLR 2023, algorithm 1.
template <class... Ps>
using MomentumTracking = MixingFrom<TakesMixing, Policies<MomentumTracker>, Ps...>;

}  // namespace terse
