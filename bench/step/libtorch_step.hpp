// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace terse::bench {

/// The local work of a compressed step in LibTorch's own calls on one thread, in the order of DeepSpeed's
/// implementation, with its bits packed by the calls that torch has.
class LibtorchStep {
 public:
  LibtorchStep(std::ptrdiff_t n, const float* m, const float* d, const float* g, float* x);
  ~LibtorchStep();
  bool available() const;
  void local();

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace terse::bench
