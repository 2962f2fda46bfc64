// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/recording.hpp"

// Pipelines whose stages compute on a GPU against the host's, bit for bit; stages are threads that share it.

#define TERSE_TEST_DEVICE OnThisThread

#include "pipeline/device.inc"
