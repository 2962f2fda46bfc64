// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "terse/core/layout.hpp"

namespace experiments {

using train::Dataset;

/// Which pictures of a data set, by number.
using Batch = std::vector<std::int64_t>;

/// 784-128-128-10 with ReLU between, softmax and cross entropy: 118,282 parameters in a flat arena, row by row, a row for each
/// output. The same calls give the same bits on one machine. Belongs to one thread at a time.
class Model {
 public:
  /// Segments of weights and biases: first, second and last.
  static terse::Layout layout();
  /// Weights and biases uniform in +-1 / sqrt(inputs of the layer).
  static std::vector<float> start(std::uint64_t seed);

  /// The mean loss over the batch at x; writes its gradient to g.
  double gradient(const std::vector<float>& x, const Dataset& data, const Batch& batch,
                  std::vector<float>& g);
  /// The share of the data set's first `count` pictures that is classified right.
  double accuracy(const std::vector<float>& x, const Dataset& data, std::int64_t count);

 private:
  /// Pictures that are worked on at a time; each row below has a number for each.
  static constexpr int lanes = 32;
  static constexpr int inputs = 784, hidden = 128, classes = 10;
  using Rows = std::vector<float>;

  void forward(const float* x, const Dataset& data, const std::int64_t* batch, int count);

  Rows pictures_ = Rows(lanes * inputs), columns_ = Rows(inputs * lanes);
  Rows first_ = Rows(hidden * lanes), second_ = Rows(hidden * lanes), scores_ = Rows(classes * lanes);
  Rows d_first_ = Rows(hidden * lanes), d_second_ = Rows(hidden * lanes);
  Rows turned_ = Rows(lanes * hidden);
};

}  // namespace experiments
