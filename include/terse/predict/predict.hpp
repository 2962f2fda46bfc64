// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a step will take on a network, before anything is trained: docs/advice.md.

#include "terse/predict/measure.hpp"  // IWYU pragma: export
#include "terse/predict/step.hpp"     // IWYU pragma: export
