// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terse::bench {

/// The local work of a compressed step as separate whole-array loops, one for each operation that a tensor
/// library would be called with, in the order in which DeepSpeed's implementation calls them. Each loop by
/// itself is as good as the compiler makes it.
class PlainStep {
 public:
  PlainStep(std::ptrdiff_t n, const float* m, const float* d, const float* g, float* x);
  void local();

 private:
  std::ptrdiff_t n_;
  const float *m0_, *d_, *g_;
  float* x_;
  std::vector<float> m_, error_, sign_, temporary_;
  std::vector<std::uint8_t> bytes_, packed_;
};

}  // namespace terse::bench
