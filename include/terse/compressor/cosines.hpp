// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// cos(pi a / b) for a >= 0, b > 0, in double: reduced to an eighth of the circle in integers, then a series, so that all
/// machines have the same bits, whatever their library makes of std::cos.
constexpr double cosine(index_t a, index_t b) {
  a %= 2 * b;
  if (a > b) a = 2 * b - a;
  const bool negative = 2 * a > b;
  if (negative) a = b - a;
  // cos(x), or, beyond an eighth, sin(x) of the rest: both of x <= pi / 4.
  const bool sine = 4 * a > b;
  constexpr double pi = 3.14159265358979323846;
  const double x = sine ? pi * static_cast<double>(b - 2 * a) / static_cast<double>(2 * b)
                        : pi * static_cast<double>(a) / static_cast<double>(b);
  double sum = 1;
  for (int k = sine ? 19 : 18; k > 1; k -= 2) sum = 1 - sum * (x * x / (k * (k - 1)));
  const double value = sine ? x * sum : sum;
  return negative ? -value : value;
}

/// The orthonormal DCT-II of columns of n <= S numbers, and its inverse, on `width` columns at a time:
///
///     y[k] = sqrt(2 / n) sum_j x[j] cos(pi (2 j + 1) k / (2 n)),     y[0] over sqrt(2)
///
/// An even n falls into a DCT-II and a DCT-IV of n / 2, a DCT-IV of even n, behind n / 2 rotations, into two DCT-IIs of n / 2: all
/// steps are orthonormal, so that rounding errors stay those of a few operations. About 2.5 n log2 n operations where n is
/// a power of two; odd n go by their matrix. Source: Plonka and Tasche, "Fast and numerically stable algorithms for discrete
/// cosine transforms", Linear Algebra and its Applications 394, 2005, section 3.
template <int S>
class Cosines {
 public:
  static constexpr int width = 16;

  /// The tables of all n, made once, which takes some milliseconds.
  static const Cosines& instance() {
    static const Cosines cosines;
    return cosines;
  }

  /// n rows of `width` numbers, transformed in place; `scratch` holds as many.
  void forward(int n, float* x, float* scratch) const {
    if (n < 2) return;
    if (n % 2 != 0) return multiply<false>(n, two_[static_cast<std::size_t>(n)], x, scratch);
    const int m = n / 2;
    for (int j = 0; j < m; ++j) halve(row(x, j), row(x, n - 1 - j), row(scratch, j), row(scratch, m + j));
    forward(m, scratch, x);
    four(m, row(scratch, m), x);
    for (int k = 0; k < m; ++k) {
      copy(row(scratch, k), row(x, 2 * k));
      copy(row(scratch, m + k), row(x, 2 * k + 1));
    }
  }
  void inverse(int n, float* x, float* scratch) const {
    if (n < 2) return;
    if (n % 2 != 0) return multiply<true>(n, two_[static_cast<std::size_t>(n)], x, scratch);
    const int m = n / 2;
    for (int k = 0; k < m; ++k) {
      copy(row(x, 2 * k), row(scratch, k));
      copy(row(x, 2 * k + 1), row(scratch, m + k));
    }
    inverse(m, scratch, x);
    four(m, row(scratch, m), x);
    for (int j = 0; j < m; ++j) halve(row(scratch, j), row(scratch, m + j), row(x, j), row(x, n - 1 - j));
  }

 private:
  using Table = std::vector<float>;
  static constexpr float root_half = 0.70710678118654752440F;

  /// sqrt(a / n), by Newton's method, for the same bits everywhere, too.
  static double norm(int a, int n) {
    const double square = static_cast<double>(a) / n;
    double root = 1;
    for (int step = 0; step < 12; ++step) root = 0.5 * (root + square / root);
    return root;
  }
  TERSE_COLD Cosines() {
    for (int n = 1; n <= S; ++n) {
      Table &two = two_[static_cast<std::size_t>(n)], &four = four_[static_cast<std::size_t>(n)];
      if (n % 2 == 0) {
        for (int j = 0; j < n / 2; ++j) {
          four.push_back(static_cast<float>(cosine(2 * j + 1, 4 * n)));
          four.push_back(static_cast<float>(cosine(2 * (n - j) - 1, 4 * n)));
        }
        continue;
      }
      for (int k = 0; k < n; ++k)
        for (int j = 0; j < n; ++j) {
          two.push_back(static_cast<float>(cosine((2 * j + 1) * k, 2 * n) * norm(k == 0 ? 1 : 2, n)));
          four.push_back(static_cast<float>(cosine((2 * j + 1) * (2 * k + 1), 4 * n) * norm(2, n)));
        }
    }
  }

  /// The DCT-IV, its own inverse.
  void four(int n, float* x, float* scratch) const {
    if (n < 2) return;
    const Table& table = four_[static_cast<std::size_t>(n)];
    if (n % 2 != 0) return multiply<false>(n, table, x, scratch);
    const int m = n / 2;
    for (int j = 0; j < m; ++j)
      rotate(table[static_cast<std::size_t>(2 * j)], table[static_cast<std::size_t>(2 * j + 1)],
             j % 2 == 0 ? 1.0F : -1.0F, row(x, j), row(x, n - 1 - j), row(scratch, j), row(scratch, m + j));
    forward(m, scratch, x);
    forward(m, row(scratch, m), x);
    copy(scratch, x);
    for (int k = 1; k < m; ++k) halve(row(scratch, k), row(scratch, n - k), row(x, 2 * k), row(x, 2 * k - 1));
    for (int l = 0; l < width; ++l) row(x, n - 1)[l] = -row(scratch, m)[l];
  }

  static float* row(float* x, int j) { return x + j * width; }
  static TERSE_INLINE void copy(const float* from, float* to) {
    TERSE_LANES
    for (int l = 0; l < width; ++l) to[l] = from[l];
  }
  /// (a + b) / sqrt(2) and (a - b) / sqrt(2)
  static TERSE_INLINE void halve(const float* a, const float* b, float* sum, float* difference) {
    TERSE_LANES
    for (int l = 0; l < width; ++l) {
      const float x = a[l], y = b[l];
      sum[l] = (x + y) * root_half;
      difference[l] = (x - y) * root_half;
    }
  }
  static TERSE_INLINE void rotate(float c, float s, float sign, const float* a, const float* b, float* along,
                                  float* across) {
    const float sc = sign * c, ss = sign * s;
    TERSE_LANES
    for (int l = 0; l < width; ++l) {
      const float x = a[l], y = b[l];
      along[l] = c * x + s * y;
      across[l] = sc * y - ss * x;
    }
  }
  template <bool Transposed>
  static void multiply(int n, const Table& table, float* x, float* scratch) {
    for (int k = 0; k < n; ++k) {
      alignas(64) float sum[width] = {};
      for (int j = 0; j < n; ++j) {
        const float factor = table[static_cast<std::size_t>(Transposed ? j * n + k : k * n + j)];
        const float* from = row(x, j);
        TERSE_LANES
        for (int l = 0; l < width; ++l) sum[l] += factor * from[l];
      }
      copy(sum, row(scratch, k));
    }
    for (int k = 0; k < n; ++k) copy(row(scratch, k), row(x, k));
  }

  // Of odd n the matrices; of even n, of the DCT-IV alone, the rotations' cosines and sines.
  std::array<Table, S + 1> two_{}, four_{};
};

TERSE_NUMERICS_END

}  // namespace terse::detail
