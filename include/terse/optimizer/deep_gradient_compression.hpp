// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/top_k.hpp"
#include "terse/momentum_correction/factor_masking.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// Deep gradient compression: sends the largest elements of the accumulated momentum, with momentum correction, factor masking
/// and a ratio that starts high.
///
///     DeepGradientCompression<>{.compressor = {.selection = {.ratio = 0.001, .warmup_steps = 4 * epoch}}}
///
/// Send biases and other small segments dense (`compress == false`). Gradient clipping: see Options::clip_norm. State: 2 n
/// floats. Source: Lin et al., ICLR 2018, algorithms 1 and 4.
template <class... Ps>
using DeepGradientCompression =
    AveragingFrom<Policies<WarmupTopK<>, FactorMasking, AllGather, Residual>, Ps...>;

}  // namespace terse
