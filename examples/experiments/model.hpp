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

struct Score {
  double loss, accuracy;  ///< accuracy from 0 to 1
};

/// 784-width-width-10 with ReLU between, softmax and cross entropy: 118,282 parameters at a width of 128, in a flat arena, row by
/// row, a row for each output. Widths are multiples of 64. The same calls give the same bits on one machine. Belongs to one
/// thread at a time.
class Model {
 public:
  static constexpr int usual_width = 128;

  explicit Model(int width = usual_width);

  /// Segments of weights and biases: first, second and last.
  static terse::Layout layout(int width = usual_width);
  /// Weights and biases uniform in +-1 / sqrt(inputs of the layer).
  static std::vector<float> start(std::uint64_t seed, int width = usual_width);

  /// The mean loss over the batch at x; writes its gradient to g.
  double gradient(const std::vector<float>& x, const Dataset& data, const Batch& batch,
                  std::vector<float>& g);
  /// Mean loss and accuracy over the data set's first `count` pictures.
  Score score(const std::vector<float>& x, const Dataset& data, std::int64_t count);

 private:
  /// Where segments begin: a layout pads none of them but the last.
  struct Offsets {
    int w1, b1, w2, b2, w3, b3, size;
    explicit Offsets(int width);
  };

  /// Pictures that are worked on at a time; each row below has a number for each.
  static constexpr int lanes = 32;
  static constexpr int inputs = 784, classes = 10;
  using Rows = std::vector<float>;

  void forward(const float* x, const Dataset& data, const std::int64_t* batch, int count);

  int hidden_;
  Offsets at_;
  Rows pictures_, columns_, first_, second_, scores_, d_first_, d_second_, turned_;
};

}  // namespace experiments
