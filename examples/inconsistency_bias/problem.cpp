// SPDX-License-Identifier: Apache-2.0
#include "problem.hpp"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "../normal.hpp"

namespace bias {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double square(const Vector& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }

/// x* by the normal equations: (sum_i H_i) x = sum_i b_i.
Vector optimum_of(const Problem& problem) {
  const std::size_t d = problem.dimension;
  Vector a(d * d, 0), b(d, 0);
  for (std::size_t rank = 0; rank < problem.hessians.size(); ++rank) {
    for (std::size_t k = 0; k < a.size(); ++k) a[k] += problem.hessians[rank][k];
    for (std::size_t k = 0; k < d; ++k) b[k] += problem.linear[rank][k];
  }
  return solve(std::move(a), std::move(b));
}

}  // namespace

void Problem::gradient(int rank, std::span<const float> x, std::span<float> g) const {
  const Vector& hessian = hessians[at(rank)];
  for (std::size_t row = 0; row < dimension; ++row) {
    double sum = -linear[at(rank)][row];
    for (std::size_t k = 0; k < dimension; ++k)
      sum += hessian[row * dimension + k] * static_cast<double>(x[k]);
    g[row] = static_cast<float>(sum);
  }
}

double Problem::square_distance(std::span<const float> x) const {
  double sum = 0;
  for (std::size_t k = 0; k < dimension; ++k) {
    const double apart = static_cast<double>(x[k]) - optimum[k];
    sum += apart * apart;
  }
  return sum;
}

bool Problem::is_square() const { return square(optimum) > 0; }

double Problem::error_of(double mean_square) const {
  return is_square() ? mean_square / square(optimum) : std::sqrt(mean_square);
}

double Problem::rounding_error(double learning_rate, double beta) const {
  double trace = 0;
  for (const Vector& hessian : hessians)
    for (std::size_t k = 0; k < dimension; ++k) trace += hessian[k * (dimension + 1)];
  const double curvature = trace / static_cast<double>(dimension * hessians.size());
  const double step = learning_rate * curvature;
  const double lost = 0x1p-24 * (1 / step + 1 + step / (1 - beta));
  return is_square() ? lost * lost : lost;
}

Problem two_node() { return {"two-node", 2, 1, {{1}, {1}}, {{1}, {-1}}, {0}}; }

Problem regression(int ranks, std::uint64_t seed) {
  constexpr std::size_t rows = 50, d = 30;
  Problem problem{"regression", ranks, d, {}, {}, {}};
  Normal common(terse::Draw::shared(seed, 0, terse::Purpose::user));
  Vector center(d);
  for (double& value : center) value = common();
  for (int rank = 0; rank < ranks; ++rank) {
    Normal normal(terse::Draw::local(seed, rank, 0, terse::Purpose::user));
    Vector a(rows * d), own(center), hessian(d * d, 0), linear(d, 0);
    for (double& value : a) value = normal();
    for (double& value : own) value += 0.1 * normal();
    for (std::size_t row = 0; row < rows; ++row) {
      const double* const line = &a[row * d];
      const double y = std::inner_product(own.begin(), own.end(), line, 0.01 * normal());
      for (std::size_t i = 0; i < d; ++i) {
        linear[i] += line[i] * y;
        for (std::size_t k = 0; k < d; ++k) hessian[i * d + k] += line[i] * line[k];
      }
    }
    problem.hessians.push_back(std::move(hessian));
    problem.linear.push_back(std::move(linear));
  }
  problem.optimum = optimum_of(problem);
  return problem;
}

Vector solve(Vector a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t column = 0; column < n; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < n; ++row)
      if (std::abs(a[row * n + column]) > std::abs(a[pivot * n + column])) pivot = row;
    if (!(std::abs(a[pivot * n + column]) > 0)) throw std::domain_error("a system of equations is singular");
    if (pivot != column) {
      for (std::size_t k = column; k < n; ++k) std::swap(a[pivot * n + k], a[column * n + k]);
      std::swap(b[pivot], b[column]);
    }
    for (std::size_t row = column + 1; row < n; ++row) {
      const double factor = a[row * n + column] / a[column * n + column];
      if (factor == 0) continue;
      for (std::size_t k = column + 1; k < n; ++k) a[row * n + k] -= factor * a[column * n + k];
      b[row] -= factor * b[column];
    }
  }
  for (std::size_t row = n; row-- > 0;) {
    for (std::size_t k = row + 1; k < n; ++k) b[row] -= a[row * n + k] * b[k];
    b[row] /= a[row * n + row];
  }
  return b;
}

}  // namespace bias
