// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/displacement.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Momentum-accelerated consensus: see Displacement for the formula and omega. State: displacement. Wire: one packet to
/// each neighbour. The graph must be fixed and symmetric, as for DecentLaM. Source: Balu et al., "Decentralized deep
/// learning using momentum-accelerated consensus", ICASSP 2021; omega = 0: Jiang et al., "Collaborative deep learning
/// in fixed topology networks", NeurIPS 2017 (CDMSGD).
template <class... Ps>
using MomentumConsensus = MixingFrom<TakesMixing, Policies<Displacement>, Ps...>;

}  // namespace terse
