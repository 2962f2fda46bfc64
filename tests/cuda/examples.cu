// SPDX-License-Identifier: Apache-2.0

// The programs of examples/gpu in one unit, since each takes most of its time to read the same headers.

#include <cstdio>
#include <string>

#include "terse/gpus.cuh"
#include "terse/interop/gpu_optimizer.cuh"
#include "terse/optimizer/one_bit_adam.hpp"

// Only a program's own main may end without a value.
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma nv_diag_suppress 940

namespace one_box {
#include "examples/gpu/one_box.cu"
}
namespace overlap {
#include "examples/gpu/overlap.cu"
}
#include "examples/gpu/optimizer.cu"
