// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging.hpp"

namespace terse {

/// Parallel momentum SGD (PmSGD): heavy ball or Nesterov on the exact mean gradient, with decoupled weight
/// decay.
///
///     MomentumSgd<>{.learning_rate = 0.05F, .momentum_correction = {.momentum = 0.9F, .nesterov = true}}
///
/// Cost: as Adam's. State: n floats. Source: Polyak 1964; Sutskever et al., ICML 2013.
template <class... Ps>
using MomentumSgd = AveragingFrom<Policies<HeavyBall>, Ps...>;

}  // namespace terse
