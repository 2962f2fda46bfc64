// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"

// Messages for benchmarks: the same numbers in every run, for any count.

namespace terse::bench {

namespace detail {

/// Returns 64 random bits for an index: splitmix64.
inline std::uint64_t random_bits(std::uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15U;
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9U;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EBU;
  return i ^ (i >> 31);
}

inline void fill_normal(buffer<float>& x) {
  for (index_t i = 0; i < x.size(); i += 2) {
    const std::uint64_t bits = random_bits(static_cast<std::uint64_t>(i));
    const float u = (static_cast<float>(bits >> 32) + 0.5F) * 0x1p-32F;
    const float angle = static_cast<float>(bits & 0xFFFFFFFFU) * (6.2831853F * 0x1p-32F);
    const float radius = std::sqrt(-2 * std::log(u));
    x[i] = radius * std::cos(angle);
    if (i + 1 < x.size()) x[i + 1] = radius * std::sin(angle);
  }
}

/// Fills x with Student's t distribution of 2 degrees of freedom, by its quantiles.
inline void fill_student(buffer<float>& x) {
  for (index_t i = 0; i < x.size(); ++i) {
    const double p = (static_cast<double>(random_bits(static_cast<std::uint64_t>(i)) >> 12) + 0.5) * 0x1p-52;
    x[i] = static_cast<float>((2 * p - 1) / std::sqrt(2 * p * (1 - p)));
  }
}

inline const float* filled(buffer<float>& x, index_t count, void (*fill)(buffer<float>&)) {
  if (x.size() < count) {
    x = {};
    x = buffer<float>(count);
    fill(x);
  }
  return x.data();
}

}  // namespace detail

/// Returns `count` numbers from the standard normal distribution, which stay until more are requested.
inline const float* normal_samples(index_t count) {
  static buffer<float> x;
  return detail::filled(x, count, detail::fill_normal);
}

/// Returns `count` numbers from Student's t distribution with 2 degrees of freedom, whose variance is infinite: a few
/// elements are far larger than all others, as in gradients of embeddings.
inline const float* heavy_samples(index_t count) {
  static buffer<float> x;
  return detail::filled(x, count, detail::fill_student);
}

/// Number of extra samples. Messages are n of n + `spare` samples and change in every step, as in training.
inline constexpr index_t spare = 1024;
/// Returns the message of a step: it begins 64 samples after that of the last step, and at the first sample again after 16
/// steps.
inline const float* at_step(const float* samples, std::uint64_t step) { return samples + step % 16 * 64; }

/// Returns ||x - y|| / ||x||.
inline double relative_error(const float* x, const float* y, index_t n) {
  double error = 0, norm = 0;
  for (index_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]), difference = value - static_cast<double>(y[i]);
    error += difference * difference;
    norm += value * value;
  }
  return std::sqrt(error / norm);
}

TERSE_NUMERICS_BEGIN

/// A message in memory.
struct Samples {
  const float* x;
  TERSE_HD float operator()(const Piece&, index_t i) const { return x[i]; }
};
/// Simplest use of a mean by an optimizer: a step of gradient descent.
struct Descend {
  float* x;
  float rate;
  static constexpr bool rests() { return true; }
  TERSE_HD void operator()(const Piece&, index_t i, bool, float mean) const { x[i] -= rate * mean; }
};

TERSE_NUMERICS_END

}  // namespace terse::bench
