// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace terse {

/// The values that functors use and that change from step to step. They are in the executor's memory. Functors read
/// them once for each piece, so that a recorded step can be replayed with other values.
struct StepScalars {
  static constexpr int most_own = 14;

  std::uint64_t step = 0;       ///< counts from 1
  std::uint64_t agreement = 0;  ///< hash of the hyper-parameters in force, see StepContext
  float gradient_scale = 1;     ///< multiplies the gradient
  /// Scalars of the recipe's policies, which define their number, places and meaning. A recipe around another one uses
  /// the places after the inner one's, see `scalars_of`.
  std::array<float, most_own> own{};
};

}  // namespace terse
