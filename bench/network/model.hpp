// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// What the programs here train, the same as in ddp.py, on one random batch until it is given others:
//
//   perceptron/WIDTH   of three hidden layers, for images of 784 pixels and 10 classes
//   transformer/WIDTH  of four blocks with four heads, for the next of each of 64 characters, which are numbers below 96

struct Model {
  using Offsets = std::vector<std::int64_t>;

  virtual ~Model() = default;
  virtual std::vector<std::vector<std::int64_t>> shapes() const = 0;  // of its parameters, in order
  /// Writes initial parameters, alike on all ranks, to `x`, one arena with parameter k at offsets[k].
  virtual void begin(float* x, const Offsets& offsets) = 0;
  /// From now on this batch, of the size that it was made for.
  virtual void take(const float* inputs, const std::int64_t* targets) = 0;
  /// Numbers of an example in either.
  virtual std::int64_t inputs() const = 0;
  virtual std::int64_t targets() const = 0;
  /// Takes parameters from `x`, writes the batch's gradient to `g`, calls ready(k) when parameter k's is final, and returns
  /// the batch's mean loss.
  virtual double gradient(const float* x, float* g, const Offsets& offsets,
                          const std::function<void(std::int64_t)>& ready) = 0;
};

/// With LibTorch, or, where the program was built without it, one whose gradient is a memory pass: see `real_model`.
/// Throws std::invalid_argument for another name.
std::unique_ptr<Model> make_model(const std::string& name, int batch, int rank);
extern const bool real_model;
