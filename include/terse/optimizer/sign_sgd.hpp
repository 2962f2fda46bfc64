// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/momentum_correction/majority_vote.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// signSGD with momentum and majority vote: one bit per element in each direction, no scale and no error feedback. The bias of
/// signs is part of the method, therefore Unchecked. The vote is exact over ScatterGather, whose owners forward the sign of the
/// sum, and over AllGather. Directions have magnitude 1: learning rates are Adam's, not SGD's.
///
/// Source: Bernstein et al., "signSGD with majority vote", ICLR 2019, algorithm 1.
template <class... Ps>
using SignSgd = AveragingFrom<Policies<Unchecked<UnitSign>, MajorityVote, NoErrorFeedback>, Ps...>;

}  // namespace terse
