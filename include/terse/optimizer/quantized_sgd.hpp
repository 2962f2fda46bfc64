// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/qsgd.hpp"
#include "terse/optimizer/gradient_averaging.hpp"

namespace terse {

/// SGD with an unbiased compressor and no memory of errors: QSGD, TernGrad (Ternary), natural compression.
///
/// Source: Alistarh et al., "QSGD", NeurIPS 2017, algorithm 1.
template <class C = Qsgd<4>, MomentumCorrection M = HeavyBall, Topology P = ScatterGather>
using QuantizedSgd = GradientAveraging<C, M, P, None>;

}  // namespace terse
