// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// What the programs here train: a multilayer perceptron for images of 784 pixels and 10 classes, the same as in ddp.py, on one
// batch of random images until it is given others.

struct Model {
  using Offsets = std::vector<std::int64_t>;

  virtual ~Model() = default;
  virtual std::vector<std::vector<std::int64_t>> shapes() const = 0;  // of its parameters, in order
  /// Writes initial parameters, alike on all ranks, to `x`, one arena with parameter k at offsets[k].
  virtual void begin(float* x, const Offsets& offsets) = 0;
  /// From now on this batch, of the size that it was made for.
  virtual void take(const float* images, const std::int64_t* labels) = 0;
  /// Takes parameters from `x`, writes the batch's gradient to `g`, calls ready(k) when parameter k's is final, and returns
  /// the batch's mean loss.
  virtual double gradient(const float* x, float* g, const Offsets& offsets,
                          const std::function<void(std::int64_t)>& ready) = 0;
};

/// With LibTorch, or, where the program was built without it, one whose gradient is a memory pass: see `real_model`.
std::unique_ptr<Model> make_model(int hidden, int batch, int rank);
extern const bool real_model;
