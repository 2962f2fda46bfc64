// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>

#include "terse/graph/spectrum.hpp"

// The effect of momentum on consensus if ranks average in pairs that are drawn again in each round. With zero gradients
// NoLoCo runs
//
//     m = momentum m + rate (mean of the pair's x - x)        x = x + m
//
// In a round drawn from RandomMatching, x is projected to its difference from the pair's mean. The projection keeps the
// share
//
//     q = (W / 2) / (W - 1), W / 2 rounded down
//
// of the squared distance from consensus, in expectation. So the sums over ranks of x^2, x m and m^2, without the
// ranks' common part, follow a linear map. They shrink if its spectral radius is below 1.

namespace terse::graph {

/// Returns the growth per round of the root of the mean squared distance from consensus over RandomMatching among
/// `size` ranks; below 1 the distance vanishes. Two ranks, which are always partners, need only a rate below 2. Returns
/// 0 for a single rank.
inline double pair_momentum_growth(int size, double rate, double momentum) {
  if (size < 2) return 0;
  const double q = static_cast<double>(size / 2) / static_cast<double>(size - 1);
  // Before m joins x, the new x m is own x^2 + cross x m. The new m^2 is a x^2 + b x m + c m^2.
  const double own = -rate * q, cross = momentum;
  const double a = rate * rate * q, b = -2 * momentum * rate * q, c = momentum * momentum;
  const std::array<double, 9> rows{1 + 2 * own + a, 2 * cross + b, c, own + a, cross + b, c, a, b, c};
  return std::sqrt(detail::spectral_radius(rows, 3));
}

}  // namespace terse::graph
