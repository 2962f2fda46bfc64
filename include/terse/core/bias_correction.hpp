// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace terse {

/// Returns 1 / (1 - beta^t), the bias correction after t steps of an exponential moving average that starts at 0.
template <class Real>
Real bias_correction(Real beta, std::uint64_t t) {
  return static_cast<Real>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(t))));
}

}  // namespace terse
