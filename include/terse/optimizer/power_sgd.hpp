// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/exchange/low_rank_round.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// PowerSGD: the mean of matrices as a product of two factors of R columns, with error feedback before the compression and
/// momentum after it. Vectors are sent dense. The first `warmup_steps` steps average exactly.
///
///     PowerSgd<4>{.learning_rate = 0.05F, .warmup_steps = epoch}
///
/// The paper's momentum on the mean is Nesterov's without the factor beta: x -= rate (mean + m). For Nesterov's
/// momentum, use HeavyBall with `.nesterov = true`. State: n floats of momentum, n of error, and the factors.
/// Source: Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, algorithm 2.
template <int R = 2, class... Ps>
using PowerSgd = AveragingFrom<Policies<LowRank<R>, HeavyBall, Residual>, Ps...>;

}  // namespace terse
