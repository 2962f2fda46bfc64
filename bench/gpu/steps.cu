// SPDX-License-Identifier: Apache-2.0
// Whole steps on a GPU, launched one kernel after the other and as CUDA graphs. Ranks are threads that share it and copy
// messages within its memory: a step of W ranks has the kernels and the hosts' work of all of them, one after the other on the
// GPU, and no network.
//
//   bench_gpu_steps [--steps N] [--floats N] [--ranks W] [--slices BYTES,...] [--few-tiles 0 | 4096]
//
// --steps      of which the median counts (50)
// --floats     lines of so many floats alone: 1000000, 10000000, 25000000 (in 148 tensors), 100000000 or 1000000000
// --ranks      lines of so many ranks alone: 1 or 2
// --slices     values of Options::slice_bytes, two lines for each: `default`, or bytes, of which 0 means one slice (default)
// --few-tiles  Tuning::few_tiles of the executor (4096, its default)
//
// The floor is the time of the bytes that a step must read and write, at the speed of a large copy in the same run. For
// Adam these are its updates alone.

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
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

template <class E, class R>
Times time(const R& recipe, const Layout& layout, const Options& options, int ranks, int steps,
           cudaStream_t stream) {
  Times times{};
  std::barrier<> all(ranks);
  cudaGraphExec_t exec = nullptr;
  ThreadGroup(ranks).run([&](Threads& threads) {
    const bool first = threads.rank() == 0;
    const E ex{stream};
    Neighbours transport(threads.split(0, threads.rank()), ex);
    Optimizer optimizer{recipe, transport, layout, options, ex};
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

/// Bytes that a copy reads and writes in a microsecond, of more data than a cache holds.
double copy_speed(const executor::cuda& ex) {
  constexpr index_t n = 128 << 20;
  buffer<float, memory::device> from(n), to(n);
  std::vector<double> each;
  for (int k = -3; k < 15; ++k) {
    ex.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    ex.move(to.data(), from.data(), n * sizeof(float));
    ex.synchronize();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (k >= 0) each.push_back(took.count());
  }
  return 2.0 * n * sizeof(float) / median(each);
}

struct Settings {
  int steps = 50, ranks = 0;
  index_t floats = 0;
  std::vector<index_t> slices{automatic_slices};
};

std::string name_of_slices(index_t bytes) {
  if (bytes == automatic_slices) return "default";
  return bytes == 0 ? "one" : std::to_string(bytes >> 20) + " MiB";
}

/// Returns whether there was a line.
template <class E>
bool run(const Settings& settings) {
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s, few_tiles %lld\n%11s %8s %6s %8s  %-23s %11s %11s %11s %9s\n", device.name,
              static_cast<long long>(terse::detail::tuning_of<E>().few_tiles), "floats", "tensors", "ranks",
              "slices", "method", "eager, us", "graph, us", "floor, us", "of it");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  constexpr index_t million = 1000000;
  const double speed = copy_speed(executor::cuda{stream});
  bool any = false;
  for (const int ranks : {1, 2})
    for (const auto& [n, count] : {std::pair{million, 1},
                                   {10 * million, 1},
                                   {100 * million, 1},
                                   {1000 * million, 1},
                                   {25 * million, 148}}) {
      // A billion floats of one rank take 40 GB.
      if (settings.floats != 0 ? settings.floats != n : n > 100 * million) continue;
      if (settings.ranks != 0 && settings.ranks != ranks) continue;
      any = true;
      const Layout layout = tensors(n, count);
      const auto line = [&](const char* method, const auto& recipe, index_t slices, double streams) {
        const Times times = time<E>(recipe, layout, {.slice_bytes = slices}, ranks, settings.steps, stream);
        const double floor = streams * sizeof(float) * static_cast<double>(layout.size()) / speed;
        std::printf("%11lld %8d %6d %8s  %-23s %11.1f %11.1f %11.1f %9.2f\n",
                    static_cast<long long>(layout.size()), count, ranks, name_of_slices(slices).c_str(),
                    method, times.eager, times.graph, floor, floor / times.graph);
        std::fflush(stdout);
      };
      for (const index_t slices : settings.slices) {
        line("Adam", Adam<>{}, slices, 7.0 * ranks);
        // The local passes of each rank, one over a chunk, whose owner reads all ranks' packets, and the bits.
        line("1-bit Adam, compressed", OneBitAdam<>{.preconditioner = {.freeze = AtStep{2}}}, slices,
             8.0 * ranks + 2 + (5.0 * ranks + 3) / 32);
      }
    }
  cudaStreamDestroy(stream);
  return any;
}

/// Exits where the command line is wrong.
Settings parse(int argc, char** argv, bool& without_few) {
  Settings settings;
  const auto number = [&](const std::string& text, long long most) {
    char* end = nullptr;
    const long long parsed = std::strtoll(text.c_str(), &end, 10);
    if (end != text.c_str() && *end == 0 && parsed >= 0 && parsed <= most) return parsed;
    std::fprintf(stderr, "bench_gpu_steps: what is '%s'? The options are in bench/gpu/steps.cu\n",
                 text.c_str());
    std::exit(2);
  };
  for (int k = 1; k < argc; k += 2) {
    const std::string name = argv[k], value = k + 1 < argc ? argv[k + 1] : "";
    if (name == "--steps") {
      settings.steps = std::max(1, static_cast<int>(number(value, 1000000)));
    } else if (name == "--floats") {
      settings.floats = number(value, 1000000000);
    } else if (name == "--ranks") {
      settings.ranks = static_cast<int>(number(value, 2));
    } else if (name == "--few-tiles") {
      without_few = number(value, 4096) == 0;
    } else if (name == "--slices") {
      settings.slices.clear();
      for (std::size_t at = 0; at <= value.size();) {
        const std::size_t comma = std::min(value.find(',', at), value.size());
        const std::string one = value.substr(at, comma - at);
        settings.slices.push_back(one == "default" ? automatic_slices : number(one, 1LL << 40));
        at = comma + 1;
      }
    } else {
      number(name, -1);
    }
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  bool without_few = false;
  const Settings settings = parse(argc, argv, without_few);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("bench_gpu_steps: no CUDA device here: nothing was measured\n", stderr);
    return 77;
  }
  try {
    const bool any = without_few ? run<executor::tuned_cuda<Tuning{.few_tiles = 0}>>(settings)
                                 : run<executor::cuda>(settings);
    if (any) return EXIT_SUCCESS;
    std::fputs("bench_gpu_steps: no line has so many floats and ranks\n", stderr);
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_gpu_steps: %s\n", problem.what());
    return EXIT_FAILURE;
  }
}
