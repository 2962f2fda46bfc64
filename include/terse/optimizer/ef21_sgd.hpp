// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/top_k.hpp"
#include "terse/error_feedback/ef21.hpp"
#include "terse/momentum_correction/smoothed_gradient.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// EF21: each rank sends the difference between its gradient and a copy that all ranks keep. The first step is exact and
/// initializes the copies. The noise of small batches enters the copies undamped; momentum before the difference (Ef21Sgdm) or a
/// ratio of at least 0.1 reduces it. With an unbiased compressor and `.error_feedback = {.rate = 1 / (1 + omega)}` it is DIANA.
///
/// Source: Richtarik, Sokolov and Fatkhullin, "EF21", NeurIPS 2021, algorithm 2; Mishchenko et al. 2019.
template <class... Ps>
using Ef21Sgd = AveragingFrom<Policies<TopK<>, NoMomentum, AllGather, Ef21>, Ps...>;

/// EF21-SGDM: each rank sends the difference between the moving average of its gradients and the copy. All ranks step along the
/// mean of the copies, which already contains the momentum. `.momentum_correction = {.eta = ...}`: see SmoothedGradient.
///
/// Source: Fatkhullin, Tyurin and Richtarik, "Momentum provably improves error feedback!", NeurIPS 2023, algorithm 1.
template <class... Ps>
using Ef21Sgdm = AveragingFrom<Policies<TopK<>, SmoothedGradient, AllGather, Ef21>, Ps...>;

}  // namespace terse
