// SPDX-License-Identifier: Apache-2.0
// Whole steps on a GPU, launched one kernel after the other and as CUDA graphs. Ranks are threads that share it and copy
// messages within its memory: a step of W ranks has the kernels and the hosts' work of all of them, one behind the other on the
// GPU, and no network.
//
//   bench_gpu_steps [STEPS [FLOATS RANKS]]     50 steps unless given; lines of so many floats and ranks alone

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <vector>

#include "neighbours.hpp"
#include "terse/device.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/thread.hpp"

namespace {

using namespace terse;
using bench::gpu::Neighbours;
using terse::detail::check_cuda;

struct Fill {
  float* to;
  TERSE_HD void operator()(const Piece&, index_t i) const {
    to[i] = static_cast<float>(i % 2047 - 1023) * 1e-3F;
  }
};

/// `count` tensors of sizes as a network's are, together about n floats: few large ones, many small ones.
Layout tensors(index_t n, int count) {
  if (count == 1) return Layout::flat(n);
  Layout layout;
  for (int k = 0; k < count; ++k) {
    const std::string name = "tensor" + std::to_string(k);
    if (k % 3 == 0)
      layout.add({name, {2 * 3 * n / (2 * count) / 1024 + 1, 1024}});
    else
      layout.add({name, {k % 3 == 1 ? 512 : 2048}, 1, 0, k % 3 != 1});
  }
  return layout;
}

struct Times {
  double eager, graph;  // microseconds, medians
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

template <class R>
Times time(const R& recipe, const Layout& layout, int ranks, int steps, cudaStream_t stream) {
  Times times{};
  std::barrier<> all(ranks);
  cudaGraphExec_t exec = nullptr;
  ThreadGroup(ranks).run([&](Threads& threads) {
    const bool first = threads.rank() == 0;
    const executor::cuda ex{stream};
    Neighbours transport(threads.split(0, threads.rank()), ex);
    Optimizer optimizer{recipe, transport, layout, {}, ex};
    buffer<float, memory::device> x(layout.size()), g(layout.size());
    for_each(ex, layout.range(), Fill{g.data()});
    for (int k = 0; k < 3; ++k) optimizer.step(x.all(), g.all());
    const auto timed = [&](auto&& step) {
      std::vector<double> each;
      for (int k = 0; k < steps; ++k) {
        all.arrive_and_wait();
        const auto begin = std::chrono::steady_clock::now();
        step();
        all.arrive_and_wait();
        each.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      }
      return median(each);
    };
    const double eager = timed([&] { optimizer.step(x.all(), g.all()); });

    all.arrive_and_wait();
    if (first) check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "a capture");
    all.arrive_and_wait();
    optimizer.record(x.all(), g.all());
    all.arrive_and_wait();
    if (first) {
      cudaGraph_t graph = nullptr;
      check_cuda(cudaStreamEndCapture(stream, &graph), "a capture");
      check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    all.arrive_and_wait();
    const auto replay = [&] {
      optimizer.replay([&] {
        all.arrive_and_wait();  // all have brought their scalars up to date
        if (first) check_cuda(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
        all.arrive_and_wait();
      });
    };
    for (int k = 0; k < 3; ++k) replay();
    const double graph = timed(replay);
    if (first) {
      times = {eager, graph};
      check_cuda(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    }
    all.arrive_and_wait();
  });
  return times;
}

int run(int steps, index_t floats, int only_ranks) {
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s\n%12s %8s %6s  %-22s %12s %12s\n", device.name, "floats", "tensors", "ranks", "method",
              "eager, us", "graph, us");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const auto line = [&](const char* method, const auto& recipe, index_t n, int count, int ranks) {
    if (only_ranks != 0 && (only_ranks != ranks || floats != n)) return;
    const Layout layout = tensors(n, count);
    const Times times = time(recipe, layout, ranks, steps, stream);
    std::printf("%12lld %8d %6d  %-22s %12.1f %12.1f\n", static_cast<long long>(layout.size()), count, ranks,
                method, times.eager, times.graph);
    std::fflush(stdout);
  };
  constexpr index_t million = 1000000;
  for (const int ranks : {1, 2})
    for (const auto& [n, count] :
         {std::pair{million, 1}, {10 * million, 1}, {100 * million, 1}, {25 * million, 148}}) {
      line("Adam", Adam<>{}, n, count, ranks);
      line("1-bit Adam, compressed", OneBitAdam<>{.preconditioner = {.freeze = AtStep{2}}}, n, count, ranks);
    }
  cudaStreamDestroy(stream);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("bench_gpu_steps: no CUDA device here: nothing was measured\n", stderr);
    return 77;
  }
  const int steps = argc > 1 ? std::atoi(argv[1]) : 50;
  if (argc > 4 || argc == 3 || steps <= 0) {
    std::fputs("usage: bench_gpu_steps [STEPS [FLOATS RANKS]]\n", stderr);
    return 2;
  }
  try {
    return run(steps, argc > 3 ? std::atoll(argv[2]) : 0, argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_gpu_steps: %s\n", problem.what());
    return EXIT_FAILURE;
  }
}
