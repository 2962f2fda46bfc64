// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_nccl.hpp"
#include "places.hpp"
#include "terse/cuda.cuh"

namespace train {

/// What the units of nvcc are instantiated for, whatever messages go over.
struct OnCuda : Place<DeviceTransport, terse::executor::cuda> {};

}  // namespace train
