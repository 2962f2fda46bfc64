// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terse {

/// What changes from step to step and enters functors. It lies in the executor's memory, and functors read it once
/// for each piece, so that a recorded step can be replayed with other values.
struct StepScalars {
  std::uint64_t step = 0;       ///< counts from 1
  std::uint64_t agreement = 0;  ///< hash of the hyper-parameters in force, see StepContext
  float gradient_scale = 1;     ///< multiplies the gradient
  float first = 1, second = 1;  ///< Adam's bias corrections, 1 / (1 - beta^step); 1: none
  float rate_ratio = 0;         ///< this step's learning rate over the last one's; 0 after a rate of 0
  float outer_ratio = 1;        ///< the same for outer steps of local methods
  float inverse_weight = 1;     ///< 1 / this rank's push-sum weight
};

}  // namespace terse
