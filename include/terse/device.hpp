// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of terse.hpp that run on a device, as kernels of grid executors. These are `executor::cuda`, for which
/// terse/cuda.cuh includes all requirements, and `executor::emulated`, see terse/device/emulated.hpp. Include it
/// before code that runs there.

#include "terse/device/compressor/keyed.hpp"                // IWYU pragma: export
#include "terse/device/compressor/sparse.hpp"               // IWYU pragma: export
#include "terse/device/error_feedback/stored_residual.hpp"  // IWYU pragma: export
#include "terse/device/topology/envelope.hpp"               // IWYU pragma: export
#include "terse/device/verbs/factors.hpp"                   // IWYU pragma: export
#include "terse/device/verbs/pack.hpp"                      // IWYU pragma: export
#include "terse/device/verbs/product.hpp"                   // IWYU pragma: export
#include "terse/device/verbs/reduce.hpp"                    // IWYU pragma: export
#include "terse/device/verbs/select.hpp"                    // IWYU pragma: export
#include "terse/device/verbs/sparse.hpp"                    // IWYU pragma: export
