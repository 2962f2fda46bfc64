// SPDX-License-Identifier: Apache-2.0
// The time of a kernel's launch by the size of its arguments, through the executor's own entry: kernels of one block that
// do next to nothing, one after the other on a stream and as a CUDA graph.
//
//   bench_gpu_launches [LAUNCHES]     in a row; 1000 unless given

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/device/cuda.cuh"

namespace {

using namespace terse;
using terse::detail::check_cuda;
using Clock = std::chrono::steady_clock;

/// A kernel with arguments of `bytes` bytes, of which its thread 0 adds the last word to `to`.
template <int bytes>
struct Argument {
  struct Shared {};
  static constexpr int words = (bytes - static_cast<int>(sizeof(int*))) / 4;
  int* to;
  std::array<int, words> values;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    if (block.thread() == 0) *to += values[words - 1];
  }
};

constexpr int rounds = 25;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
  return values[rounds / 2];
}

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

template <int bytes>
bool line(const executor::cuda& ex, int launches) {
  static_assert(sizeof(Argument<bytes>) == bytes);
  buffer<int, memory::device> sum(1);
  Argument<bytes> kernel{sum.data(), {}};
  kernel.values.back() = 1;
  const auto all = [&] {
    for (int k = 0; k < launches; ++k) ex.launch(kernel, 1);
  };

  check_cuda(cudaStreamBeginCapture(ex.stream, cudaStreamCaptureModeThreadLocal), "a capture");
  all();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaStreamEndCapture(ex.stream, &graph), "a capture");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");

  std::vector<double> host, stream, replay;
  for (int round = -3; round < rounds; ++round) {
    ex.synchronize();
    const auto begin = Clock::now();
    all();
    const auto enqueued = Clock::now();
    ex.synchronize();
    const auto done = Clock::now();
    check_cuda(cudaGraphLaunch(exec, ex.stream), "cudaGraphLaunch");
    ex.synchronize();
    const auto replayed = Clock::now();
    if (round < 0) continue;
    host.push_back(microseconds(enqueued - begin) / launches);
    stream.push_back(microseconds(done - begin) / launches);
    replay.push_back(microseconds(replayed - done) / launches);
  }
  check_cuda(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");

  int counted = 0;
  download(view<const int, memory::device>(sum.all()), view<int>(&counted, 1));
  std::printf("%10d %12.2f %14.2f %12.2f\n", bytes, median(host), median(stream), median(replay));
  if (counted == 2 * (rounds + 3) * launches) return true;
  std::fprintf(stderr, "bench_gpu_launches: %d of %d kernels have run\n", counted,
               2 * (rounds + 3) * launches);
  return false;
}

int run(int launches) {
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s, %d launches in a row, medians of %d rounds\n%10s %12s %14s %12s\n", device.name, launches,
              rounds, "arguments", "host, us", "on stream, us", "in graph, us");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const executor::cuda ex{stream};
  const bool right = line<16>(ex, launches) && line<304>(ex, launches) && line<1024>(ex, launches) &&
                     line<4096>(ex, launches) && line<10240>(ex, launches) && line<32760>(ex, launches);
  cudaStreamDestroy(stream);
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("bench_gpu_launches: no CUDA device here: nothing was measured\n", stderr);
    return 77;
  }
  const int launches = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (argc > 2 || launches <= 0) {
    std::fputs("usage: bench_gpu_launches [LAUNCHES]\n", stderr);
    return 2;
  }
  try {
    return run(launches);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_gpu_launches: %s\n", problem.what());
    return EXIT_FAILURE;
  }
}
