// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// SGD with a biased compressor and error feedback: EF-SGD. With LocalMomentumBefore and ScatterGather (the owner of
/// a chunk keeps an error, too) it is dist-EF-SGD. With HeavyBall, which takes late elements for new ones, it wants a
/// much smaller rate than dense momentum SGD. Where the learning
/// rate changes, `.error_feedback = {.follows_rate = true}` gives each error the weight it had when it arose, as in
/// the papers, whose errors carry the rate.
///
/// Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
/// schemes", ICML 2019, algorithm 2; Zheng, Huang and Kwok, NeurIPS 2019, algorithms 1 and 2.
template <class... Ps>
using ErrorFeedbackSgd =
    AveragingFrom<Policies<ScaledSign<MeanAbs>, NoMomentum, ScatterGather, Residual>, Ps...>;

}  // namespace terse
