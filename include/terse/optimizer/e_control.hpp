// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/top_k.hpp"
#include "terse/error_feedback/error_control.hpp"
#include "terse/optimizer/averaging.hpp"

namespace terse {

/// EControl: each rank adds a share of its error to its gradient, and sends the difference from a copy that all ranks keep. All
/// ranks step along the mean of the copies. The first step is exact and initializes them. `.error_feedback = {.eta = ...}`: see
/// ErrorControl.
///
/// Source: Gao, Islamov and Stich, "EControl: fast distributed optimization with compression and error control", ICLR 2024.
template <class... Ps>
using EControl = AveragingFrom<Policies<TopK<>, NoMomentum, AllGather, ErrorControl>, Ps...>;

}  // namespace terse
