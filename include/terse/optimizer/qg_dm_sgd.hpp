// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Quasi-global momentum, which does not follow the data of a single rank: see QuasiGlobal. Its fixed point is that of DSgd
/// at an equal learning rate, with Nesterov momentum at (1 + beta) times that rate. For directed and time-varying graphs:
/// stable on exponential graphs, one-peer schedules and matchings, but not on every symmetric matrix or long directed ring;
/// docs/algorithms/decentralized/qg-dm-sgd.md has the condition. State: velocity. Wire: one packet to each neighbour.
/// Source: Lin et al., "Quasi-global momentum", ICML 2021, algorithm 1.
template <class... Ps>
using QgDmSgd = MixingFrom<TakesMixing, Policies<QuasiGlobal>, Ps...>;

}  // namespace terse
