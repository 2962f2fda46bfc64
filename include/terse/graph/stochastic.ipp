// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>

#include "terse/core/separate.hpp"
#include "terse/graph/stochastic.hpp"

namespace terse::graph::detail {

TERSE_CORE std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

TERSE_CORE void check_sum(const char* line, int index, double sum) {
  if (!(std::abs(sum - 1) <= stochastic_tolerance))
    throw usage_error(std::string("a mixing matrix's ") + line + "s sum to 1, but " + line + " " +
                      std::to_string(index) + " sums to " + digits(sum));
}

}  // namespace terse::graph::detail

namespace terse::graph {

TERSE_CORE void check_stochastic(const std::vector<double>& matrix, int size, Stochastic kind) {
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

TERSE_CORE int order_of(const std::vector<double>& matrix) {
  int n = 0;
  while (static_cast<std::size_t>(n) * static_cast<std::size_t>(n) < matrix.size()) ++n;
  if (n == 0 || static_cast<std::size_t>(n) * static_cast<std::size_t>(n) != matrix.size())
    throw usage_error("a mixing matrix is square; this one has " + std::to_string(matrix.size()) +
                      " entries");
  return n;
}

}  // namespace terse::graph
