// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Quasi-global momentum, which takes part in nobody's data alone: see QuasiGlobal. At rest it stands where DSgd
/// stands at the same learning rate (with Nesterov at (1 + beta) times that). It is stable on directed graphs and
/// those that change, too; only eigenvalues of W below about -0.9 (of a user's own matrix with next to nothing on its
/// diagonal) are beyond it. State: velocity. Wire: one packet to each neighbour. Source: Lin et al., "Quasi-global
/// momentum", ICML 2021, algorithm 1.
template <class P = Gossip, class C = Dense, class F = None, class Decay = DecoupledDecay>
using QgDmSgd = ParameterMixing<QuasiGlobal, P, C, F, Decay>;

}  // namespace terse
