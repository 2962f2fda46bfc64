// SPDX-License-Identifier: Apache-2.0
#pragma once

// Predictions of the time of a step on a network before any training: docs/advice.md.

#include "terse/predict/measure.hpp"  // IWYU pragma: export
#include "terse/predict/step.hpp"     // IWYU pragma: export
