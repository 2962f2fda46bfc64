// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../normal.hpp"

// The problem of the experiment `theory`: logistic regression with a nonconvex penalty, and gradient noise of a known size,
//
//     f(x) = mean over 256 examples of log(1 + exp(-label features . x)) + penalty sum_k x_k^2 / (1 + x_k^2).
//
// Examples lie on ranks in blocks, each drawn around a vector of its own: data differ between ranks, and f is the same for all
// numbers of ranks.

namespace theory {

inline constexpr std::size_t dimension = 20;
inline constexpr int blocks = 16, block = 16;  // of examples; a rank has whole blocks
inline constexpr double penalty = 0.01;
inline constexpr double difference = 0.5;  // of a block's vector from the common one
/// The standard deviation of an element of the gradient noise, whose square has the mean 1.
inline const double deviation = 1 / std::sqrt(dimension);

using Vector = std::array<double, dimension>;

/// The slope of the penalty at x.
inline double penalty_slope(double x) {
  const double below = 1 + x * x;
  return 2 * penalty * x / (below * below);
}

class Problem {
 public:
  explicit Problem(std::uint64_t seed) : seed_(seed) {
    Normal common(terse::Draw::shared(seed, 0, terse::Purpose::user));
    Vector center;
    for (double& value : center) value = common();
    for (int b = 0; b < blocks; ++b) {
      Normal normal(terse::Draw::local(seed, b, 0, terse::Purpose::user));
      Vector own = center;
      for (double& value : own) value += difference * normal();
      for (int e = 0; e < block; ++e) {
        Vector features;
        double product = 0;
        for (std::size_t k = 0; k < dimension; ++k) {
          features[k] = normal();
          product += features[k] * own[k];
        }
        // The label turns the features; a fifth of noise keeps the classes from being separable.
        const double label = product + std::sqrt(static_cast<double>(dimension)) * normal() > 0 ? 1 : -1;
        for (double& value : features) value *= label;
        signed_features_.push_back(features);
      }
    }
  }

  /// Features times label, of each example.
  const std::vector<Vector>& examples() const { return signed_features_; }
  /// Returns the gradient of blocks [first, last), with no noise.
  Vector gradient(const Vector& x, int first, int last) const {
    Vector sum{};
    for (int e = first * block; e < last * block; ++e) {
      const Vector& a = signed_features_[static_cast<std::size_t>(e)];
      double margin = 0;
      for (std::size_t k = 0; k < dimension; ++k) margin += a[k] * x[k];
      const double slope = -1 / (1 + std::exp(margin));
      for (std::size_t k = 0; k < dimension; ++k) sum[k] += slope * a[k];
    }
    for (std::size_t k = 0; k < dimension; ++k)
      sum[k] = sum[k] / ((last - first) * block) + penalty_slope(x[k]);
    return sum;
  }
  /// Returns |grad f|^2.
  double square_norm(const Vector& x) const {
    double sum = 0;
    for (const double value : gradient(x, 0, blocks)) sum += value * value;
    return sum;
  }
  /// Writes the gradient of a rank's examples with the noise of a step.
  void sample(int rank, int ranks, std::uint64_t step, std::span<const float> at,
              std::span<float> into) const {
    Vector x;
    std::copy(at.begin(), at.end(), x.begin());
    const int share = blocks / ranks;
    const Vector exact = gradient(x, rank * share, (rank + 1) * share);
    Normal normal(terse::Draw::local(seed_, rank, step + 1, terse::Purpose::user));
    for (std::size_t k = 0; k < dimension; ++k) into[k] = static_cast<float>(exact[k] + deviation * normal());
  }

  std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_;
  std::vector<Vector> signed_features_;
};

/// Ranks and steps of a point, and its learning rate for plain SGD: rate sqrt(ranks / steps).
struct Point {
  int ranks;
  std::uint64_t steps;
  double rate;

  float sgd() const { return static_cast<float>(rate * std::sqrt(ranks / static_cast<double>(steps))); }
  /// With momentum beta, whose sum of directions is 1 / (1 - beta) times the gradient.
  float momentum(double beta) const { return static_cast<float>(sgd() * (1 - beta)); }
};

/// Runs AC-SGD, 2 bits forward and 4 back, in a pipeline of two stages: a layer of tanh in front of the regression. Returns the
/// mean over steps of |grad f|^2, whose rate depends on steps alone.
double ac_sgd(const Problem& problem, const Point& point);
/// Runs direct quantization of activations with as many bits in that pipeline, and returns the same mean.
double direct_quantization(const Problem& problem, const Point& point);

}  // namespace theory
