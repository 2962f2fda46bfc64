// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/qsgd.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// SGD with an unbiased compressor and no error feedback: QSGD, TernGrad (Ternary), natural compression.
///
/// Source: Alistarh et al., "QSGD", NeurIPS 2017, algorithm 1.
template <class... Ps>
using QuantizedSgd = AveragingFrom<Policies<Qsgd<4>, HeavyBall, NoErrorFeedback>, Ps...>;

}  // namespace terse
