// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "terse/cuda.cuh"

// What the tests of whole optimizers on a GPU share.

namespace {

/// A step as a CUDA graph.
class Graph {
 public:
  /// From here on all that goes to this thread's own stream is recorded; the one that threads share can't be captured.
  static void begin() {
    check(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  }
  static Graph end() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    Graph result;
    check(cudaGraphInstantiate(&result.exec_, graph, 0));
    check(cudaGraphDestroy(graph));
    return result;
  }
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  void replay() const { check(cudaGraphLaunch(exec_, cudaStreamPerThread)); }

 private:
  Graph() = default;
  static void check(cudaError_t result) { terse::detail::check_cuda(result, "a CUDA graph"); }
  cudaGraphExec_t exec_ = nullptr;
};

/// Each rank's thread has a stream of its own. Few elements come to the kernels for many tiles, too.
struct OnThisThread : terse::executor::cuda {
  static constexpr terse::Tuning tuning{.few_tiles = 6};
  OnThisThread() : cuda{cudaStreamPerThread} {}
};

}  // namespace
