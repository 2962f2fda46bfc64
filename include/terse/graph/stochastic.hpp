// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "terse/core/error.hpp"

namespace terse::graph {

/// What is known of a matrix with entries >= 0, each kind including the ones before.
enum class Stochastic {
  rows,       ///< rows sum to 1
  doubly,     ///< columns, too
  symmetric,  ///< W = W^T
};

/// How far a sum or a pair of entries may be off, for matrices from text or from other arithmetic.
inline constexpr double stochastic_tolerance = 1e-9;

namespace detail {

/// A number with all digits that matter: 0.3333 is not 1/3.
inline std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

inline std::string entry(int row, int column, double value) {
  return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " + digits(value);
}

inline void check_sum(const char* line, int index, double sum) {
  if (!(std::abs(sum - 1) <= stochastic_tolerance))
    throw usage_error(std::string("a mixing matrix's ") + line + "s sum to 1, but " + line + " " +
                      std::to_string(index) + " sums to " + digits(sum));
}

}  // namespace detail

/// Throws usage_error unless the row-major matrix is size x size and of this kind; the sentence names the row
/// or column at fault, and its value. O(size^2).
inline void check_stochastic(const std::vector<double>& matrix, int size, Stochastic kind) {
  const auto n = static_cast<std::size_t>(size);
  if (matrix.size() != n * n)
    throw usage_error("a mixing matrix for " + std::to_string(size) + " ranks has " + std::to_string(n * n) +
                      " entries, not " + std::to_string(matrix.size()));
  for (int i = 0; i < size; ++i) {
    double row = 0;
    for (int j = 0; j < size; ++j) {
      const double value = matrix[static_cast<std::size_t>(i) * n + static_cast<std::size_t>(j)];
      const double mirrored = matrix[static_cast<std::size_t>(j) * n + static_cast<std::size_t>(i)];
      if (!(value >= 0))
        throw usage_error("a mixing matrix's entries are not negative, but " + detail::entry(i, j, value));
      if (kind == Stochastic::symmetric && !(std::abs(value - mirrored) <= stochastic_tolerance))
        throw usage_error("this mixing matrix is declared symmetric, but " + detail::entry(i, j, value) +
                          " and " + detail::entry(j, i, mirrored));
      row += value;
    }
    detail::check_sum("row", i, row);
  }
  if (kind == Stochastic::rows) return;
  for (int j = 0; j < size; ++j) {
    double column = 0;
    for (int i = 0; i < size; ++i)
      column += matrix[static_cast<std::size_t>(i) * n + static_cast<std::size_t>(j)];
    detail::check_sum("column", j, column);
  }
}

/// n of an n x n matrix; throws usage_error if it has another number of entries or is empty.
inline int order_of(const std::vector<double>& matrix) {
  int n = 0;
  while (static_cast<std::size_t>(n) * static_cast<std::size_t>(n) < matrix.size()) ++n;
  if (n == 0 || static_cast<std::size_t>(n) * static_cast<std::size_t>(n) != matrix.size())
    throw usage_error("a mixing matrix is square; this one has " + std::to_string(matrix.size()) +
                      " entries");
  return n;
}

}  // namespace terse::graph
