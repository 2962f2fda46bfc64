// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

namespace terse {

/// Quasi-global momentum, which takes part in nobody's data alone: see QuasiGlobal. At rest it stands where DSgd
/// stands at the same learning rate (with Nesterov at (1 + beta) times that). Momentum for graphs that are directed or
/// change: stable on exponential ones, one-peer schedules and matchings, but neither on every symmetric matrix nor on
/// long directed rings; docs/algorithms/decentralized/qg-dm-sgd.md has the condition. State: velocity. Wire: one packet
/// to each neighbour. Source: Lin et al., "Quasi-global momentum", ICML 2021, algorithm 1.
template <class... Ps>
using QgDmSgd = MixingFrom<TakesMixing, Policies<QuasiGlobal>, Ps...>;

}  // namespace terse
