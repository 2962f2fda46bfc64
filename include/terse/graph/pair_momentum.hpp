// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>

#include "terse/graph/spectrum.hpp"

// What momentum does to consensus where ranks average in pairs that are drawn anew in each round. With gradients of zero
// NoLoCo runs
//
//     m = momentum m + rate (mean of the pair's x - x)        x = x + m
//
// In a round drawn from RandomMatching the differences x - x's mean over the pair are a projection, which keeps the share
//
//     q = (W / 2) / (W - 1), W / 2 rounded down
//
// of the squared distance from consensus, in expectation. So the sums over ranks of x^2, x m and m^2, the ranks' common
// part taken out, go by a linear map, and shrink where its spectral radius is below 1.

namespace terse::graph {

/// Growth per round of the root of the mean squared distance from consensus over RandomMatching among `size` ranks; below 1
/// it dies out. Two ranks, who are always partners, need no more than a rate below 2. 0 for a rank alone.
inline double pair_momentum_growth(int size, double rate, double momentum) {
  if (size < 2) return 0;
  const double q = static_cast<double>(size / 2) / static_cast<double>(size - 1);
  // The new x m before m joins x is own x^2 + cross x m; the new m^2 is a x^2 + b x m + c m^2.
  const double own = -rate * q, cross = momentum;
  const double a = rate * rate * q, b = -2 * momentum * rate * q, c = momentum * momentum;
  const std::array<double, 9> rows{1 + 2 * own + a, 2 * cross + b, c, own + a, cross + b, c, a, b, c};
  return std::sqrt(detail::spectral_radius(rows, 3));
}

}  // namespace terse::graph
