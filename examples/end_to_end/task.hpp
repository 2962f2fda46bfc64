// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "terse/core/draw.hpp"

namespace end_to_end {

inline constexpr terse::index_t features = 32, classes = 16;

/// Uniform in [-1, 1), a function of its arguments alone.
inline float uniform(std::uint64_t seed, std::uint64_t which, terse::index_t i) {
  const std::uint64_t bits =
      terse::Draw::shared(seed, which, terse::Purpose::user).bits(static_cast<std::uint64_t>(i));
  return static_cast<float>(bits >> 40) * 0x1p-23F - 1;
}

/// Examples with ids [0, count): uniform inputs, and classes that a random network of two layers gives them.
class Task {
 public:
  Task(std::int64_t count, std::uint64_t seed)
      : inputs_(static_cast<std::size_t>(count * features)), labels_(static_cast<std::size_t>(count)) {
    constexpr terse::index_t hidden = 32;
    for (std::int64_t id = 0; id < count; ++id) {
      float* const x = inputs_.data() + id * features;
      // Which 1, 2 and 3 are for: inputs behind them, so that they never meet.
      for (terse::index_t i = 0; i < features; ++i)
        x[i] = uniform(seed, static_cast<std::uint64_t>(id) + 3, i);
      float score[classes] = {};
      for (terse::index_t h = 0; h < hidden; ++h) {
        float sum = 0;
        for (terse::index_t i = 0; i < features; ++i) sum += x[i] * uniform(seed, 1, h * features + i);
        for (terse::index_t c = 0; c < classes; ++c)
          score[c] += std::tanh(sum) * uniform(seed, 2, h * classes + c);
      }
      int best = 0;
      for (int c = 1; c < classes; ++c)
        if (score[c] > score[best]) best = c;
      labels_[static_cast<std::size_t>(id)] = best;
    }
  }

  const float* input(std::uint64_t id) const {
    return inputs_.data() + static_cast<std::int64_t>(id) * features;
  }
  int label(std::uint64_t id) const { return labels_[static_cast<std::size_t>(id)]; }

 private:
  std::vector<float> inputs_;
  std::vector<int> labels_;
};

}  // namespace end_to_end
