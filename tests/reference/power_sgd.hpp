// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gradient_averaging.hpp"

// Oracle of PowerSGD, on the terms of gradient_averaging.hpp.

namespace terse::reference {

/// How a segment is viewed, row after row.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
};

/// The first dimension by all others; a vector is one column.
inline MatrixShape matrix_shape(const Segment& segment) {
  const std::size_t rows = segment.shape.empty() ? 1 : at(segment.shape.front());
  return {rows, rows == 0 ? 0 : at(segment.count) / rows};
}

/// Modified Gram-Schmidt over the columns, from left to right. Returns for each column the part of its norm that
/// the columns before it leave over. Where that is at most `dependent`, the column becomes 0.
inline std::vector<double> orthonormalize(std::vector<double>& matrix, std::size_t rows, std::size_t columns,
                                          double dependent) {
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += matrix[i * columns + a] * matrix[i * columns + b];
    return sum;
  };
  std::vector<double> left(columns);
  for (std::size_t j = 0; j < columns; ++j) {
    const double before = std::sqrt(dot(j, j));
    for (std::size_t b = 0; b < j; ++b) {
      const double along = dot(b, j);
      for (std::size_t i = 0; i < rows; ++i) matrix[i * columns + j] -= along * matrix[i * columns + b];
    }
    const double norm = std::sqrt(dot(j, j));
    left[j] = before > 0 ? norm / before : 0.0;
    for (std::size_t i = 0; i < rows; ++i)
      matrix[i * columns + j] = left[j] > dependent ? matrix[i * columns + j] / norm : 0.0;
  }
  return left;
}

/// PowerSGD (Vogels et al. 2019) with warm start: M_i = g_i + e_i; P = orthonormalize(mean M_i Q);
/// Q_i = M_i^T P; Q = mean Q_i; the direction is P Q^T; e_i = M_i - P Q_i^T, what the rank's own
/// reconstruction lacks. Momentum on the mean.
struct PowerSgd : Simulation {
  struct Options {
    double momentum = 0;
    bool nesterov = false;
    double weight_decay = 0;
    double dependent = 1e-6;         ///< see orthonormalize
    bool keep_lost_columns = false;  ///< where P has a column 0, the warm start keeps Q's old column, not 0
  };

  Options options;
  std::vector<MatrixShape> shapes;     ///< [segment]; may be changed before the first step
  std::vector<std::vector<double>> q;  ///< [segment], columns x rank, row after row
  std::vector<std::vector<double>> p;  ///< [segment], rows x rank, of the last step
  std::vector<Arena<double>> errors;   ///< e, [rank][k]
  Arena<double> momentum;
  /// The smallest part of a column's norm that orthonormalize left over and kept, in the last step: float loses
  /// its inverse in accuracy. Within a factor 10 of `dependent` it is a close call.
  double smallest_remainder = 1;

  /// `initial_q[segment]` has columns x rank elements, row after row; it may be empty where nothing is compressed.
  template <class Values>
  PowerSgd(Layout layout_, int ranks_, Options options_, const Values& start,
           std::vector<std::vector<double>> initial_q)
      : Simulation(std::move(layout_), ranks_, start),
        options(options_),
        q(std::move(initial_q)),
        p(q.size()),
        errors(arenas()),
        momentum(arena()) {
    for (const Segment& segment : layout.segments()) shapes.push_back(reference::matrix_shape(segment));
    if (q.size() != shapes.size()) throw std::invalid_argument("each segment needs its initial Q");
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, double learning_rate) {
    const std::vector<Arena<double>> g = begin(gradients);
    smallest_remainder = 1;
    Arena<double> mean = mean_of(g);
    for (const Piece& piece : compressed()) average(at(piece.segment), at(piece.offset), g, mean);
    descend_all(mean, learning_rate, options.momentum, options.nesterov, options.weight_decay, momentum);
  }

 private:
  void average(std::size_t s, std::size_t offset, const std::vector<Arena<double>>& g, Arena<double>& mean) {
    const std::size_t rows = shapes[s].rows, columns = shapes[s].columns;
    if (rows * columns != at(layout.segments()[s].count))
      throw std::invalid_argument("the matrix has not as many elements as its segment");
    if (q[s].empty() || q[s].size() % columns != 0)
      throw std::invalid_argument("the initial Q must have as many rows as the matrix has columns");
    const std::size_t rank = q[s].size() / columns;
    const double count = static_cast<double>(ranks);

    std::vector<std::vector<double>> m(ranks, std::vector<double>(rows * columns));
    for (std::size_t i = 0; i < ranks; ++i)
      for (std::size_t k = 0; k < m[i].size(); ++k) m[i][k] = g[i][offset + k] + errors[i][offset + k];

    p[s].assign(rows * rank, 0.0);
    for (const std::vector<double>& own : m)
      for (std::size_t a = 0; a < rows; ++a)
        for (std::size_t b = 0; b < columns; ++b)
          for (std::size_t j = 0; j < rank; ++j)
            p[s][a * rank + j] += own[a * columns + b] * q[s][b * rank + j] / count;
    const std::vector<double> left = orthonormalize(p[s], rows, rank, options.dependent);
    judge(s, offset, left);

    std::vector<double> next(columns * rank);
    for (std::size_t i = 0; i < ranks; ++i) {
      std::vector<double> own(columns * rank);
      for (std::size_t a = 0; a < rows; ++a)
        for (std::size_t b = 0; b < columns; ++b)
          for (std::size_t j = 0; j < rank; ++j)
            own[b * rank + j] += m[i][a * columns + b] * p[s][a * rank + j];
      for (std::size_t k = 0; k < own.size(); ++k) next[k] += own[k] / count;
      for (std::size_t a = 0; a < rows; ++a)
        for (std::size_t b = 0; b < columns; ++b)
          errors[i][offset + a * columns + b] = m[i][a * columns + b] - entry(p[s], a, own, b, rank);
    }
    for (std::size_t a = 0; a < rows; ++a)
      for (std::size_t b = 0; b < columns; ++b)
        mean[offset + a * columns + b] = entry(p[s], a, next, b, rank);

    for (std::size_t b = 0; b < columns; ++b)
      for (std::size_t j = 0; j < rank; ++j)
        if (!options.keep_lost_columns || left[j] > options.dependent)
          q[s][b * rank + j] = next[b * rank + j];
  }

  /// (A B^T)(a, b)
  static double entry(const std::vector<double>& left, std::size_t a, const std::vector<double>& right,
                      std::size_t b, std::size_t rank) {
    double sum = 0;
    for (std::size_t j = 0; j < rank; ++j) sum += left[a * rank + j] * right[b * rank + j];
    return sum;
  }

  void judge(std::size_t s, std::size_t offset, const std::vector<double>& left) {
    for (const double part : left) {
      if (part > options.dependent) smallest_remainder = std::min(smallest_remainder, part);
      if (part > options.dependent / 10 && part < options.dependent * 10)
        for (std::size_t k = 0; k < at(layout.segments()[s].count); ++k) doubt(offset + k);
    }
  }
};

}  // namespace terse::reference
