// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Returns cos(pi a / b) for a >= 0, b > 0, in double. Unlike std::cos it has the same bits on all machines: it
/// reduces the angle to an eighth of the circle in integers, then sums a series.
constexpr double cosine(index_t a, index_t b) {
  a %= 2 * b;
  if (a > b) a = 2 * b - a;
  const bool negative = 2 * a > b;
  if (negative) a = b - a;
  // cos(x) or, beyond an eighth of the circle, sin(x) of the complement: in both cases x <= pi / 4.
  const bool sine = 4 * a > b;
  constexpr double pi = 3.14159265358979323846;
  const double x = sine ? pi * static_cast<double>(b - 2 * a) / static_cast<double>(2 * b)
                        : pi * static_cast<double>(a) / static_cast<double>(b);
  double sum = 1;
  for (int k = sine ? 19 : 18; k > 1; k -= 2) sum = 1 - sum * (x * x / (k * (k - 1)));
  const double value = sine ? x * sum : sum;
  return negative ? -value : value;
}

/// Returns sqrt(a / n) by Newton's method, also with the same bits on all machines.
constexpr double root_of_share(int a, int n) {
  const double square = static_cast<double>(a) / n;
  double root = 1;
  for (int step = 0; step < 12; ++step) root = 0.5 * (root + square / root);
  return root;
}

/// The tables of Cosines, concatenated in order of n.
struct CosineTables {
  const float* all;
  TERSE_HD const float* waves(int n) const { return all + waves_at(n); }
  TERSE_HD const float* four(int n) const { return all + four_at(n); }
  TERSE_HD static constexpr int waves_at(int n) { return (n - 1) * n * (2 * n - 1) / 3; }
  TERSE_HD static constexpr int four_at(int n) { return waves_at(n) + n * n; }
};

inline namespace TERSE_INSTRUCTIONS {

/// The orthonormal DCT-II of n <= S numbers, and its inverse, of 16 columns at a time:
///
///     y[k] = sqrt(2 / n) sum_j x[j] cos(pi (2 j + 1) k / (2 n)),     y[0] over sqrt(2)
///
/// A DCT-II of even n splits into a DCT-II and a DCT-IV of n / 2; a DCT-IV of even n splits, after n / 2 rotations,
/// into two DCT-IIs of n / 2. All steps are orthonormal, so rounding errors stay those of a few operations. About
/// 3 n log2 n operations if n is a power of two; odd n use their matrix. Source: Plonka and Tasche, "Fast and numerically
/// stable algorithms for discrete cosine transforms", Linear Algebra and its Applications 394, 2005, section 3.
template <int S>
class Cosines {
 public:
  static constexpr int width = 16;
  typedef float Row __attribute__((vector_size(4 * width)));  // NOLINT: an alias can't express it
  /// A row that is only aligned as a float.
  struct Loose {
    Row row;
  } __attribute__((packed, aligned(alignof(float)), may_alias));

  /// Rows of `width` numbers, `step` floats from one to the next.
  struct From {
    const float* at;
    index_t step;
    TERSE_INLINE const Loose& operator[](index_t j) const {
      return *reinterpret_cast<const Loose*>(at + j * step);
    }
  };
  struct To {
    float* at;
    index_t step;
    TERSE_INLINE Loose& operator[](index_t j) const { return *reinterpret_cast<Loose*>(at + j * step); }
  };

  /// Returns the tables of all n, which are made once in some milliseconds.
  static const Cosines& instance() {
    static const Cosines cosines;
    return cosines;
  }

  /// Transforms n rows x to y, in other memory.
  void forward(int n, From x, To y) const {
    if (n == S)
      two(Constant<S>{}, x, y);
    else
      two(n, x, y);
  }
  void inverse(int n, From y, To x) const {
    if (n == S)
      back(Constant<S>{}, y, x);
    else
      back(n, y, x);
  }
  /// Returns the tables of all n, for kernels: see CosineTables.
  std::vector<float> tables() const {
    std::vector<float> all(static_cast<std::size_t>(CosineTables::waves_at(S + 1)));
    for (int n = 1; n <= S; ++n) {
      const auto k = static_cast<std::size_t>(n);
      std::copy(waves_[k].begin(), waves_[k].end(), all.begin() + CosineTables::waves_at(n));
      std::copy(four_[k].begin(), four_[k].end(), all.begin() + CosineTables::four_at(n));
    }
    return all;
  }
  /// Returns wave k of n numbers.
  const float* wave(int n, int k) const { return waves_[static_cast<std::size_t>(n)].data() + k * n; }

 private:
  // Lengths may be types, so that the compiler knows the loop bounds for the longest one.
  template <int N>
  using Constant = std::integral_constant<int, N>;
  template <int N>
  static constexpr Constant<N / 2> half(Constant<N>) {
    return {};
  }
  static constexpr int half(int n) { return n / 2; }
  template <class Length>
  static constexpr int room() {
    if constexpr (std::is_same_v<Length, int>)
      return S;
    else
      return Length::value < 1 ? 1 : Length::value;
  }
  static constexpr float root_half = 0.70710678118654752440F;

  TERSE_COLD Cosines() {
    for (int n = 1; n <= S; ++n) {
      Table &wave = waves_[static_cast<std::size_t>(n)], &four = four_[static_cast<std::size_t>(n)];
      for (int k = 0; k < n; ++k)
        for (int j = 0; j < n; ++j)
          wave.push_back(
              static_cast<float>(cosine((2 * j + 1) * k, 2 * n) * root_of_share(k == 0 ? 1 : 2, n)));
      if (n % 2 == 0)
        for (int j = 0; j < n / 2; ++j) {
          four.push_back(static_cast<float>(cosine(2 * j + 1, 4 * n)));
          four.push_back(static_cast<float>(cosine(2 * (n - j) - 1, 4 * n)));
        }
      else
        for (int k = 0; k < n; ++k)
          for (int j = 0; j < n; ++j)
            four.push_back(
                static_cast<float>(cosine((2 * j + 1) * (2 * k + 1), 4 * n) * root_of_share(2, n)));
    }
  }

  /// The rows between two steps.
  template <int N>
  struct Rows {
    Row row[std::size_t{N}];
    From from(int first) const { return {reinterpret_cast<const float*>(row + first), width}; }
    To to(int first) { return {reinterpret_cast<float*>(row + first), width}; }
    Row& operator[](int j) { return row[j]; }
  };

  /// Computes the DCT-II.
  template <class Length>
  void two(Length n, From x, To y) const {
    if (n == 1) {
      y[0].row = x[0].row;
      return;
    }
    if (n % 2 != 0) return multiply<false>(n, waves_[static_cast<std::size_t>(n)], x, y);
    const auto m = half(n);
    Rows<room<Length>()> s;
    for (int j = 0; j < m; ++j) {
      s[j] = (x[j].row + x[n - 1 - j].row) * root_half;
      s[m + j] = (x[j].row - x[n - 1 - j].row) * root_half;
    }
    two(m, s.from(0), {y.at, 2 * y.step});
    four(m, s.from(m), {y.at + y.step, 2 * y.step});
  }
  /// Computes the inverse of the DCT-II.
  template <class Length>
  void back(Length n, From y, To x) const {
    if (n == 1) {
      x[0].row = y[0].row;
      return;
    }
    if (n % 2 != 0) return multiply<true>(n, waves_[static_cast<std::size_t>(n)], y, x);
    const auto m = half(n);
    Rows<room<Length>()> s;
    back(m, {y.at, 2 * y.step}, s.to(0));
    four(m, {y.at + y.step, 2 * y.step}, s.to(m));
    for (int j = 0; j < m; ++j) {
      x[j].row = (s[j] + s[m + j]) * root_half;
      x[n - 1 - j].row = (s[j] - s[m + j]) * root_half;
    }
  }
  /// Computes the DCT-IV, which is its own inverse.
  template <class Length>
  void four(Length n, From x, To y) const {
    if (n == 1) {
      y[0].row = x[0].row;
      return;
    }
    const Table& table = four_[static_cast<std::size_t>(n)];
    if (n % 2 != 0) return multiply<false>(n, table, x, y);
    const auto m = half(n);
    Rows<room<Length>()> s, t;
    const float* turn = table.data();
    for (int j = 0; j < m; ++j, turn += 2) {
      const Row a = x[j].row, b = x[n - 1 - j].row;
      const float sign = j % 2 == 0 ? 1.0F : -1.0F;
      s[j] = turn[0] * a + turn[1] * b;
      s[m + j] = (sign * turn[0]) * b - (sign * turn[1]) * a;
    }
    two(m, s.from(0), t.to(0));
    two(m, s.from(m), t.to(m));
    y[0].row = t[0];
    for (int k = 1; k < m; ++k) {
      y[2 * k].row = (t[k] + t[n - k]) * root_half;
      y[2 * k - 1].row = (t[k] - t[n - k]) * root_half;
    }
    y[n - 1].row = -t[m];
  }
  using Table = std::vector<float>;
  template <bool Transposed>
  static void multiply(int n, const Table& table, From x, To y) {
    for (int k = 0; k < n; ++k) {
      Row sum{};
      for (int j = 0; j < n; ++j)
        sum += table[static_cast<std::size_t>(Transposed ? j * n + k : k * n + j)] * x[j].row;
      y[k].row = sum;
    }
  }

  /// The matrix of the DCT-II; for the DCT-IV the matrix if n is odd, otherwise the cosines and sines of its rotations.
  std::array<Table, std::size_t{S} + 1> waves_{}, four_{};
};

}  // namespace TERSE_INSTRUCTIONS

TERSE_NUMERICS_END

}  // namespace terse::detail
