// SPDX-License-Identifier: Apache-2.0
#pragma once

/// All of terse.hpp, and the parts that run it on a CUDA device. For nvcc; see docs/cuda.md.

#include "terse/device.hpp"
#include "terse/device/cuda.cuh"
#include "terse/terse.hpp"
#include "terse/transport/through_host.hpp"
