// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "terse/core/layout.hpp"
#include "text.hpp"

// Without LibTorch's headers, which take long to compile, and which Debian's clang++ takes as C++17 alone.

namespace gpt {

struct Shape {
  int words = 2048;  ///< sub-words of the vocabulary
  int length = 64;   ///< tokens that a prediction may look back at
  int width = 192;
  int blocks = 4;
  int heads = 6;

  int window() const {
    return length + 1;
  }  ///< each token but the last is an input, and each but the first a target
};

/// A decoder-only transformer of 2.2 million parameters by default, on the CPU. Its parameters and gradients are one arena each, so
/// that any optimizer can train it. The table of sub-words is the last layer, too.
class Model {
 public:
  /// Equal seeds give equal parameters. LibTorch and OpenBLAS compute in this thread alone from here on.
  Model(const Shape& shape, std::uint64_t seed);
  ~Model();

  const terse::Layout& layout() const;
  float* parameters();
  const float* gradients() const;

  /// The mean loss over windows of shape.window() tokens, one after the other; leaves its gradients.
  double gradient(const Tokens& windows);
  /// The same without gradients.
  double loss(const Tokens& windows);
  /// Adds `count` tokens to a text, each drawn by the model's probabilities.
  void write(Tokens& text, int count, std::uint64_t seed);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gpt
