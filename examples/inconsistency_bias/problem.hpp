// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bias {

using Vector = std::vector<double>;

/// A quadratic function on each rank, f_i(x) = x^T H_i x / 2 - b_i^T x, and the x* at which the mean of the
/// gradients H_i x - b_i is 0, in double. At x* itself a rank's own gradient is not 0: that is what bias comes from.
struct Problem {
  std::string name;
  int ranks = 0;
  std::size_t dimension = 0;
  std::vector<Vector> hessians;  ///< of each rank, row by row
  std::vector<Vector> linear;    ///< b_i
  Vector optimum;                ///< x*

  /// Writes the gradient of f_rank at x.
  void gradient(int rank, std::span<const float> x, std::span<float> g) const;
  /// ||x - x*||^2
  double square_distance(std::span<const float> x) const;
  /// Errors are (1/n) sum_i ||x_i - x*||^2 / ||x*||^2, or, where x* = 0, the root of (1/n) sum_i ||x_i||^2.
  bool is_square() const;
  double error_of(double mean_square) const;
  /// The scale of errors at which fp32 stops a method: a step moves x by learning_rate H (x - x*), which is lost
  /// where it is below half a unit in the last place of x, or of momentum. An estimate, from mean sizes.
  double rounding_error(double learning_rate, double beta) const;
};

/// f_i(x) = (x - c_i)^2 / 2 on two ranks, c = (1, -1); x* = 0.
Problem two_node();

/// f_i(x) = ||A_i x - y_i||^2 / 2: A_i is 50 x 30, standard normal, y_i = A_i x_i^o + 0.01 noise, x_i^o = x^o + 0.1
/// N(0, I), x^o ~ N(0, I). Numbers are a function of the seed and the rank. After the experiment of Yuan et al.,
/// "DecentLaM", ICCV 2021; how far the x_i^o lie apart is ours.
Problem regression(int ranks, std::uint64_t seed);

/// x of A x = b, n = b.size(), by elimination with pivots. Throws std::domain_error where A is singular. O(n^3).
Vector solve(Vector a, Vector b);

}  // namespace bias
