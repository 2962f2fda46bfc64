// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

// C++17, since LibTorch's headers are.

namespace terse::bench {

/// A compressor with its residual as it is usually written, over n elements, n a multiple of 64.
class Baseline {
 public:
  Baseline() = default;
  Baseline(const Baseline&) = delete;
  Baseline& operator=(const Baseline&) = delete;
  virtual ~Baseline() = default;

  virtual void encode(const float* message) = 0;
  /// x -= rate * what was encoded
  virtual void accumulate(float* x, float rate) = 0;
  /// Of what was encoded.
  virtual std::ptrdiff_t bytes() const = 0;
};

using BaselineMaker = std::unique_ptr<Baseline> (*)(std::ptrdiff_t n);

/// LibTorch's own calls for one bit an element; null without LibTorch.
BaselineMaker libtorch_one_bit();

}  // namespace terse::bench
