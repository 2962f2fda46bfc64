// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/locally.hpp"

namespace terse {

/// Decentralized Adam: each rank takes its own Adam step and then mixes with its neighbours. Moments stay local. Adam's
/// hyper-parameters are in `momentum_correction.direction`:
///
///     DAdam<>{.learning_rate = 1e-3F, .momentum_correction = {.direction = {.momentum_correction = {.beta1 = 0.9F}}}}
///
/// Takes a topology, a compressor, an error feedback and a weight decay. State: 2 n floats. Cf. Nazari, Tarzanagh and
/// Michailidis, "DADAM: a consensus-based distributed adaptive gradient method for online optimization", 2019. It mixes in
/// parallel with the step, with AMSGrad's variance.
template <class... Ps>
using DAdam =
    MixingFrom<TakesMixing, Policies<AdaptThenCombine<Locally<ExponentialAverage, AdamVariance>>>, Ps...>;

}  // namespace terse
