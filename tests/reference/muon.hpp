// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "terse/core/layout.hpp"

// An oracle of Muon, all ranks in one thread, written from the formulas; and the polar factor by another way, Jacobi's.

namespace terse::reference {

/// A matrix in double, row after row.
struct Matrix {
  std::size_t rows, columns;
  std::vector<double> elements;

  Matrix(std::size_t rows_, std::size_t columns_)
      : rows(rows_), columns(columns_), elements(rows * columns) {}
  double& operator()(std::size_t i, std::size_t j) { return elements[i * columns + j]; }
  double operator()(std::size_t i, std::size_t j) const { return elements[i * columns + j]; }

  Matrix transposed() const {
    Matrix t(columns, rows);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) t(j, i) = (*this)(i, j);
    return t;
  }
  friend Matrix operator*(const Matrix& a, const Matrix& b) {
    Matrix c(a.rows, b.columns);
    for (std::size_t i = 0; i < a.rows; ++i)
      for (std::size_t k = 0; k < a.columns; ++k)
        for (std::size_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
    return c;
  }
  friend Matrix operator+(Matrix a, const Matrix& b) {
    for (std::size_t k = 0; k < a.elements.size(); ++k) a.elements[k] += b.elements[k];
    return a;
  }
  friend Matrix operator*(double s, Matrix a) {
    for (double& x : a.elements) x *= s;
    return a;
  }
  double norm() const {
    double sum = 0;
    for (const double x : elements) sum += x * x;
    return std::sqrt(sum);
  }
};

/// X = G / (margin |G|), wide side up, and X = a X + (b A + c A A) X with A = X X^T, once for each (a, b, c).
inline Matrix orthogonalized(const Matrix& g, const std::vector<std::array<double, 3>>& steps,
                             double margin) {
  Matrix x = g.norm() > 0 ? 1 / (margin * g.norm()) * g : g;
  const bool tall = x.rows > x.columns;
  if (tall) x = x.transposed();
  for (const auto& [a, b, c] : steps) {
    const Matrix gram = x * x.transposed();
    x = a * x + (b * gram + c * (gram * gram)) * x;
  }
  return tall ? x.transposed() : x;
}
inline std::vector<std::array<double, 3>> jordan() { return {5, {3.4445, -4.7750, 2.0315}}; }

/// G = U S V^T by one-sided Jacobi rotations of the shorter side: S, and U V^T of what is not 0.
struct Svd {
  std::vector<double> values;  ///< in descending order
  Matrix polar;
};
inline Svd svd(const Matrix& g) {
  const bool tall = g.rows >= g.columns;
  Matrix a = tall ? g : g.transposed();
  const std::size_t n = a.columns;
  Matrix v(n, n);
  for (std::size_t k = 0; k < n; ++k) v(k, k) = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (std::size_t i = 0; i < a.rows; ++i) {
          pp += a(i, p) * a(i, p);
          qq += a(i, q) * a(i, q);
          pq += a(i, p) * a(i, q);
        }
        if (pq == 0 || std::abs(pq) <= 1e-16 * std::sqrt(pp * qq)) continue;
        off = std::max(off, std::abs(pq) / std::sqrt(pp * qq));
        const double z = (qq - pp) / (2 * pq);
        const double t = (z >= 0 ? 1 : -1) / (std::abs(z) + std::sqrt(1 + z * z));
        const double cosine = 1 / std::sqrt(1 + t * t), sine = t * cosine;
        const auto rotate = [&](Matrix& m) {
          for (std::size_t i = 0; i < m.rows; ++i) {
            const double mp = m(i, p), mq = m(i, q);
            m(i, p) = cosine * mp - sine * mq;
            m(i, q) = sine * mp + cosine * mq;
          }
        };
        rotate(a);
        rotate(v);
      }
    if (off < 1e-14) break;
  }
  Svd result{{}, Matrix(a.rows, n)};
  Matrix u = a;
  for (std::size_t k = 0; k < n; ++k) {
    double square = 0;
    for (std::size_t i = 0; i < a.rows; ++i) square += a(i, k) * a(i, k);
    result.values.push_back(std::sqrt(square));
    for (std::size_t i = 0; i < a.rows; ++i) u(i, k) = square > 0 ? a(i, k) / std::sqrt(square) : 0;
  }
  std::sort(result.values.rbegin(), result.values.rend());
  result.polar = u * v.transposed();
  if (!tall) result.polar = result.polar.transposed();
  return result;
}

/// Hidden matrices: m = mu m + g, u = g + mu m or m, x -= lr (scale X + wd x). Others: Adam, decoupled decay.
struct Muon {
  struct Options {
    double momentum = 0.95;
    bool nesterov = true, rms = true;  ///< the latter: the scale is 0.2 sqrt(max(rows, columns))
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
    double clip_norm = std::numeric_limits<double>::infinity();
    std::vector<std::array<double, 3>> steps = jordan();
    double margin = 1;
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Arena<double> parameters, momentum, variance;
  double steps = 0;

  template <class Values>
  Muon(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(std::move(options_)),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())),
        variance(at(layout.size())) {}

  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate) {
    ++steps;
    const Arena<double> g = clipped_mean(layout, ranks, gradients, options.clip_norm);
    for (const Segment& segment : layout.segments()) {
      const double rate = learning_rate * static_cast<double>(segment.learning_rate_scale);
      const double decay = options.weight_decay * static_cast<double>(segment.weight_decay);
      if (segment.hidden && segment.count > 0)
        hidden_step(segment, g, rate, decay);
      else
        adam_step(segment, g, rate, decay);
    }
  }

 private:
  void hidden_step(const Segment& segment, const Arena<double>& g, double rate, double decay) {
    Matrix u(at(segment.shape[0]), at(segment.count / segment.shape[0]));
    for (std::size_t k = 0; k < u.elements.size(); ++k) {
      const std::size_t i = at(segment.offset) + k;
      momentum[i] = options.momentum * momentum[i] + g[i];
      u.elements[k] = options.nesterov ? g[i] + options.momentum * momentum[i] : momentum[i];
    }
    const double rows = static_cast<double>(u.rows), columns = static_cast<double>(u.columns);
    const double scale =
        options.rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
    const Matrix x = orthogonalized(u, options.steps, options.margin);
    for (std::size_t k = 0; k < u.elements.size(); ++k) {
      double& parameter = parameters[at(segment.offset) + k];
      parameter -= rate * (scale * x.elements[k] + decay * parameter);
    }
  }
  void adam_step(const Segment& segment, const Arena<double>& g, double rate, double decay) {
    for (index_t j = segment.offset; j < segment.offset + segment.count; ++j) {
      const std::size_t k = at(j);
      momentum[k] = options.beta1 * momentum[k] + (1 - options.beta1) * g[k];
      variance[k] = options.beta2 * variance[k] + (1 - options.beta2) * g[k] * g[k];
      const double m = momentum[k] / (1 - std::pow(options.beta1, steps)),
                   v = variance[k] / (1 - std::pow(options.beta2, steps));
      parameters[k] -= rate * (m / (std::sqrt(v) + options.epsilon) + decay * parameters[k]);
    }
  }
};

}  // namespace terse::reference
