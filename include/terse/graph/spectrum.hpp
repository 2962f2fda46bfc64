// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "terse/graph/concept.hpp"
#include "terse/graph/stochastic.hpp"

// Matrices here are row-major vectors of n x n doubles. All functions are for set-up and tests: they allocate, and
// those that return a radius take O(n^3) time.

namespace terse::graph {

/// Returns W of one round, n rows. A diagonal element that rounding has made negative becomes 0.
template <Graph G>
std::vector<double> matrix_of(const G& graph, int size, std::uint64_t round) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<double> matrix(n * n, 0);
  std::vector<Edge> edges;
  edges.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    graph.row(static_cast<int>(i), size, round, edges);
    double own = 1;
    for (const Edge& edge : edges) {
      matrix[i * n + static_cast<std::size_t>(edge.peer)] = edge.weight;
      own -= edge.weight;
    }
    matrix[i * n + i] = std::max(own, 0.0);
  }
  return matrix;
}

namespace detail {

/// Returns the row-major product of n x n matrices, which are vectors or arrays.
template <class Matrix>
Matrix product(const Matrix& left, const Matrix& right, std::size_t n) {
  Matrix result = left;
  std::fill(result.begin(), result.end(), 0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k) {
      const double factor = left[i * n + k];
      if (std::fpclassify(factor) == FP_ZERO) continue;
      for (std::size_t j = 0; j < n; ++j) result[i * n + j] += factor * right[k * n + j];
    }
  return result;
}

/// Divides a matrix by its Frobenius norm and returns the norm; a zero matrix stays unchanged.
template <class Matrix>
double normalize(Matrix& matrix) {
  double largest = 0;  // so that squares neither overflow nor underflow
  for (const double value : matrix) largest = std::fmax(largest, std::abs(value));
  if (largest <= 0) return 0;
  double squares = 0;
  for (const double value : matrix) squares += (value / largest) * (value / largest);
  const double norm = largest * std::sqrt(squares);
  for (double& value : matrix) value /= norm;
  return norm;
}

/// Returns max |lambda| of any square matrix: lim ||M^k||^(1/k), along k = 2^s by squaring with rescaling. Complex
/// eigenvalues, which make a power iteration rotate, don't disturb it. The effect of non-normality on a norm has
/// vanished at k = 2^48. The remaining error is rounding: about 1e-14 in well-conditioned eigenvalues, and up to
/// 1e-16^(1/m) in those with a Jordan block of size m, also for 0.
template <class Matrix>
double spectral_radius(Matrix matrix, std::size_t n) {
  double logarithm = 0, share = 1;
  for (int squaring = 0; squaring <= 48; ++squaring) {
    const double norm = normalize(matrix);
    if (norm <= 0) return 0;
    logarithm += share * std::log(norm);
    share /= 2;
    matrix = product(matrix, matrix, n);
  }
  return std::exp(logarithm);
}

}  // namespace detail

/// Returns rho(W): max |lambda| of all eigenvalues except one 1, that of consensus. Disagreement shrinks by this
/// factor per round. With 1 the ranks never agree; with 0 they agree in at most n rounds. Throws usage_error unless
/// rows sum to 1. Accuracy and cost: see detail::spectral_radius; 49 products.
inline double second_largest_modulus(const std::vector<double>& matrix) {
  const int n = order_of(matrix);
  check_stochastic(matrix, n, Stochastic::rows);
  std::vector<double> rest = matrix;
  for (double& value : rest) value -= 1.0 / n;
  return detail::spectral_radius(std::move(rest), static_cast<std::size_t>(n));
}

/// Returns lambda_min(W) of a symmetric W, to about 1e-14; exact diffusion (D2) needs more than -1/3. Cost: 49
/// products. Throws usage_error unless W is symmetric with rows that sum to 1.
inline double smallest_eigenvalue(const std::vector<double>& matrix) {
  const int n = order_of(matrix);
  check_stochastic(matrix, n, Stochastic::symmetric);
  const auto size = static_cast<std::size_t>(n);
  std::vector<double> gap = matrix;  // I - W, whose eigenvalues 1 - lambda are not negative
  for (double& value : gap) value = -value;
  for (std::size_t i = 0; i < size; ++i) gap[i * size + i] += 1;
  return 1 - detail::spectral_radius(std::move(gap), size);
}

}  // namespace terse::graph
