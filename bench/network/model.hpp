// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// What bench_network trains: a multilayer perceptron on random images of 784 pixels and 10 classes. The same as in ddp.py.

struct Model {
  virtual ~Model() = default;
  virtual std::vector<std::int64_t> sizes() const = 0;  // of its parameters, in order
  /// Takes parameters from `x`, one arena with parameter k at offsets[k], and writes a batch's gradient to `g`; calls ready(k)
  /// when parameter k's is final.
  virtual void gradient(const float* x, float* g, const std::vector<std::int64_t>& offsets,
                        const std::function<void(std::int64_t)>& ready) = 0;
};

/// With LibTorch, or, where the program was built without it, one whose gradient is a memory pass: see `real_model`.
std::unique_ptr<Model> make_model(int hidden, int batch, int rank);
extern const bool real_model;
