// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/local_updates.hpp"

namespace terse {

/// Local SGD around any recipe that runs alone: x = mean_i x_i after every `period` steps. With
/// average_gradients_until it is post-local SGD.
///
///     LocalSgd<Adam<>>{.inner = {.learning_rate = 1e-3F}, .period = 16}
template <class Inner, class... Ps>
using LocalSgd = LocalUpdatesFrom<Inner, PlainAverage, Inside::alone, Ps...>;

template <class Inner, class... Ps>
using PostLocalSgd = LocalSgd<Inner, Ps...>;

/// SlowMo around a recipe that runs alone or, with Inside::together, one that gossips (SlowMo over SGP).
template <class Inner, Inside Where = Inside::alone, class... Ps>
using SlowMo = LocalUpdatesFrom<Inner, OuterMomentum<OuterKind::slow_mo>, Where, Ps...>;

enum class Block { classical, nesterov };

/// Blockwise model-update filtering. `momentum` is best 1 - 1 / ranks, says its paper.
template <class Inner, Block Kind = Block::nesterov, class... Ps>
using Bmuf = LocalUpdatesFrom<
    Inner, OuterMomentum<Kind == Block::nesterov ? OuterKind::nesterov_block : OuterKind::classical_block>,
    Inside::alone, Ps...>;

/// DiLoCo: outer Nesterov momentum with rate 0.7 and momentum 0.9.
template <class Inner, class... Ps>
using DiLoCo = LocalUpdatesFrom<Inner, OuterMomentum<OuterKind::di_lo_co>, Inside::alone, Ps...>;

}  // namespace terse
