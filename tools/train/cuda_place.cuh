// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "places.hpp"
#include "terse/cuda.cuh"

namespace train {

/// What the units of nvcc are instantiated for. Counted below the copies to and from the GPU, so that seconds of
/// communication are those of the messages alone.
struct OnCuda : Place<terse::ThroughHost<terse::Metered<terse::AnyTransport>, terse::executor::cuda>,
                      terse::executor::cuda> {};

}  // namespace train
