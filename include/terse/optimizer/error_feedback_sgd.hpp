// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// SGD with a biased compressor and error feedback: EF-SGD. With LocalMomentumBefore and ScatterGather (where the owner of a
/// chunk also keeps an error) it is dist-EF-SGD. HeavyBall treats delayed elements as new ones, so it requires a much smaller
/// rate than dense momentum SGD. If the learning rate changes, `.error_feedback = {.follows_rate = true}` gives each error
/// the learning rate of the step in which it arose, as in the papers.
///
/// Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
/// schemes", ICML 2019, algorithm 2; Zheng, Huang and Kwok, NeurIPS 2019, algorithms 1 and 2.
template <class... Ps>
using ErrorFeedbackSgd =
    AveragingFrom<Policies<ScaledSign<MeanAbs>, NoMomentum, ScatterGather, Residual>, Ps...>;

}  // namespace terse
