// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "terse/core/error.hpp"

namespace terse::graph {

/// The known properties of a matrix with entries >= 0; each kind includes the previous ones.
enum class Stochastic {
  rows,       ///< rows sum to 1
  doubly,     ///< columns sum to 1, too
  symmetric,  ///< W = W^T
};

/// The tolerance of a sum or a pair of entries, for matrices from text or from other arithmetic.
inline constexpr double stochastic_tolerance = 1e-9;

namespace detail {

/// Formats a number with all significant digits: 0.3333 is not 1/3.
std::string digits(double value);

inline std::string entry(int row, int column, double value) {
  return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " + digits(value);
}

void check_sum(const char* line, int index, double sum);

}  // namespace detail

/// Throws usage_error unless the row-major matrix is size x size and of this kind. The error names the wrong row or
/// column, and its value. O(size^2).
void check_stochastic(const std::vector<double>& matrix, int size, Stochastic kind);

/// Returns n of an n x n matrix; throws usage_error if it has another number of entries or is empty.
int order_of(const std::vector<double>& matrix);

}  // namespace terse::graph

#ifndef TERSE_SEPARATE
#include "terse/graph/stochastic.ipp"
#endif
