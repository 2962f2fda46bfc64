// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/top_k.hpp"
#include "terse/error_feedback/difference.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// EF21: each rank sends how its gradient differs from a copy that all keep. The first step is exact and starts
/// the copies. Noise of small batches enters the copies as it is; momentum before the difference
/// (LocalMomentumBefore without Nesterov: EF21-SGDM) or a ratio of a tenth and more tames it. With an unbiased
/// compressor and `.error_feedback = {.rate = 1 / (1 + omega)}` it is DIANA.
///
/// Source: Richtarik, Sokolov and Fatkhullin, "EF21", NeurIPS 2021, algorithm 2; Mishchenko et al. 2019.
template <class... Ps>
using Ef21Sgd = AveragingFrom<Policies<TopK<>, NoMomentum, AllGather, Difference>, Ps...>;

}  // namespace terse
