// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of terse.hpp that run on a device, as kernels of grid executors: `executor::cuda`, for which terse/cuda.cuh has all that
/// is needed, and `executor::emulated`, see terse/executor/emulated.hpp. To be included before what runs there is used.

#include "terse/compressor/grid_keyed.hpp"                // IWYU pragma: export
#include "terse/compressor/grid_sparse.hpp"               // IWYU pragma: export
#include "terse/compressor/grid_tiled.hpp"                // IWYU pragma: export
#include "terse/error_feedback/grid_stored_residual.hpp"  // IWYU pragma: export
#include "terse/executor/grid_factors.hpp"                // IWYU pragma: export
#include "terse/executor/grid_pack.hpp"                   // IWYU pragma: export
#include "terse/executor/grid_product.hpp"                // IWYU pragma: export
#include "terse/executor/grid_reduce.hpp"                 // IWYU pragma: export
#include "terse/executor/grid_select.hpp"                 // IWYU pragma: export
#include "terse/executor/grid_sparse.hpp"                 // IWYU pragma: export
#include "terse/topology/grid_envelope.hpp"               // IWYU pragma: export
