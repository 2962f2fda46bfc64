// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "terse/core/layout.hpp"

// Oracles in double, from the papers: DeMo with a cosine transform summed term by term, and Distributed Lion.

namespace terse::reference {

/// Entry (k, j) of the orthonormal DCT-II of n numbers.
inline double wave(index_t n, index_t k, index_t j) {
  const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n));
  return scale *
         std::cos(std::acos(-1.0) * static_cast<double>((2 * j + 1) * k) / static_cast<double>(2 * n));
}
using Doubles = std::vector<double>;
/// Of a block, row after row: the coefficient of u half waves down and v across at v rows + u.
inline Doubles transformed(index_t rows, index_t columns, const Doubles& x) {
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  Doubles half(x.size()), y(x.size());
  for (index_t u = 0; u < rows; ++u)
    for (index_t c = 0; c < columns; ++c)
      for (index_t r = 0; r < rows; ++r)
        half[at(u * columns + c)] += wave(rows, u, r) * x[at(r * columns + c)];
  for (index_t u = 0; u < rows; ++u)
    for (index_t v = 0; v < columns; ++v)
      for (index_t c = 0; c < columns; ++c)
        y[at(v * rows + u)] += wave(columns, v, c) * half[at(u * columns + c)];
  return y;
}
inline Doubles restored(index_t rows, index_t columns, const Doubles& y) {
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  Doubles half(y.size()), x(y.size());
  for (index_t u = 0; u < rows; ++u)
    for (index_t v = 0; v < columns; ++v)
      for (index_t c = 0; c < columns; ++c)
        half[at(u * columns + c)] += wave(columns, v, c) * y[at(v * rows + u)];
  for (index_t u = 0; u < rows; ++u)
    for (index_t c = 0; c < columns; ++c)
      for (index_t r = 0; r < rows; ++r)
        x[at(r * columns + c)] += wave(rows, u, r) * half[at(u * columns + c)];
  return x;
}

/// The places of a tile's elements, row after row.
struct Block {
  index_t rows, columns;
  std::vector<std::size_t> places;
};
/// A matrix in blocks of `side` rows and columns, a vector in rows of `side`, as many of them together; the rest of either in
/// smaller ones.
inline std::vector<Block> blocks_of(const Segment& segment, index_t side) {
  std::vector<Block> blocks;
  const auto add = [&](index_t first, index_t rows, index_t columns, index_t stride) {
    Block block{rows, columns, {}};
    for (index_t r = 0; r < rows; ++r)
      for (index_t c = 0; c < columns; ++c)
        block.places.push_back(static_cast<std::size_t>(first + r * stride + c));
    if (rows * columns > 0) blocks.push_back(std::move(block));
  };
  const index_t height = segment.shape.size() < 2 ? 1 : segment.shape.front();
  if (height > 1 && segment.count > height) {
    const index_t width = segment.count / height;
    for (index_t r = 0; r < height; r += side)
      for (index_t c = 0; c < width; c += side)
        add(segment.offset + r * width + c, std::min(side, height - r), std::min(side, width - c), width);
    return blocks;
  }
  const index_t whole = segment.count / side;
  for (index_t r = 0; r < whole; r += side)
    add(segment.offset + r * side, std::min(side, whole - r), side, side);
  add(segment.offset + whole * side, 1, segment.count - whole * side, side);
  return blocks;
}

inline double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

/// The share of largest size, and zeros; `doubted` where a rounding may have decided which.
inline Doubles largest(Doubles waves, double share, bool& doubted) {
  Doubles sizes;
  for (const double value : waves) sizes.push_back(std::abs(value));
  std::sort(sizes.rbegin(), sizes.rend());
  const auto k = static_cast<std::size_t>(std::ceil(share * static_cast<double>(waves.size())));
  if (k == waves.size()) return waves;
  if (sizes[k - 1] - sizes[k] < 2e-5 * sizes[k - 1]) doubted = true;
  for (double& value : waves)
    if (std::abs(value) < sizes[k - 1]) value = 0;
  return waves;
}

/// Peng, Quesnelle and Kingma, algorithm 1: m = decay m + g; the top k of each block's coefficients are sent and their inverse
/// transform subtracted from m; x -= rate sign(inverse of the mean). With `with_rate` g is multiplied by the rate, as in the
/// authors' code.
struct DeMo {
  Layout layout;
  index_t side;
  double share, decay, weight_decay;
  bool with_rate = false;
  Doubles parameters;
  std::vector<Doubles> momentum;  // [rank]
  /// Whether something hung on a rounding: a coefficient at the edge of being sent, a sign at the edge of another one.
  bool doubted = false;
  bool over_senders =
      false;  // as in the authors' code: coefficients are averaged over the ranks that have sent them

  void step(const std::vector<std::vector<float>>& gradients, double rate) {
    doubted = false;
    Doubles sum(parameters.size());
    for (const Segment& segment : layout.segments())
      for (const Block& block : blocks_of(segment, side)) {
        Doubles waves(block.places.size()), senders(block.places.size());
        for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
          if (!segment.compress) {
            for (const std::size_t i : block.places) sum[i] += static_cast<double>(gradients[rank][i]);
            continue;
          }
          Doubles m;
          for (const std::size_t i : block.places)
            m.push_back(momentum[rank][i] = decay * momentum[rank][i] +
                                            (with_rate ? rate : 1) * static_cast<double>(gradients[rank][i]));
          const Doubles sent = largest(transformed(block.rows, block.columns, m), share, doubted);
          const Doubles read = restored(block.rows, block.columns, sent);
          for (std::size_t e = 0; e < sent.size(); ++e) {
            momentum[rank][block.places[e]] -= read[e];
            waves[e] += sent[e];
            senders[e] += sent[e] != 0 ? 1 : 0;
          }
        }
        if (!segment.compress) continue;
        for (std::size_t e = 0; e < waves.size(); ++e)
          if (over_senders && senders[e] > 0) waves[e] /= senders[e];
        const Doubles moved = restored(block.rows, block.columns, waves);
        for (std::size_t e = 0; e < moved.size(); ++e) sum[block.places[e]] += moved[e];
      }
    for (const Segment& segment : layout.segments())
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        const auto i = static_cast<std::size_t>(k);
        const double least = with_rate && segment.compress ? rate * 1e-6 : 1e-6;
        if ((segment.compress || sum[i] != 0) && std::abs(sum[i]) < least) doubted = true;
        const double scaled = rate * static_cast<double>(segment.learning_rate_scale);
        parameters[i] -= scaled * (sign_of(sum[i]) +
                                   weight_decay * static_cast<double>(segment.weight_decay) * parameters[i]);
      }
  }
};

/// Liu et al., algorithm 1: d = sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g on each rank; x -= rate times the
/// sign of the sum of d, or its mean. Segments that are not compressed: Lion on the mean gradient.
struct DistributedLion {
  Layout layout;
  bool vote;
  double beta1, beta2, weight_decay;
  Doubles parameters;
  std::vector<Doubles> momentum;  // [rank]
  bool doubted = false;
  std::size_t ties = 0;

  void step(const std::vector<std::vector<float>>& gradients, double rate) {
    doubted = false;
    const auto ranks = static_cast<double>(gradients.size());
    for (const Segment& segment : layout.segments())
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        const auto i = static_cast<std::size_t>(k);
        double sum = 0, mean = 0;
        for (const auto& g : gradients) mean += static_cast<double>(g[i]) / ranks;
        for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
          double& m = momentum[rank][i];
          const double g = segment.compress ? static_cast<double>(gradients[rank][i]) : mean;
          const double u = beta1 * m + (1 - beta1) * g;
          if (u != 0 && std::abs(u) < 1e-7) doubted = true;
          sum += sign_of(u);
          m = beta2 * m + (1 - beta2) * g;
        }
        if (sum == 0) ++ties;
        const double step = segment.compress && !vote ? sum / ranks : sign_of(sum);
        parameters[i] -= rate * static_cast<double>(segment.learning_rate_scale) *
                         (step + weight_decay * static_cast<double>(segment.weight_decay) * parameters[i]);
      }
  }
};

}  // namespace terse::reference
