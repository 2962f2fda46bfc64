// SPDX-License-Identifier: Apache-2.0
// The local passes of a step and of compressors on a CUDA device, beside the device's own copy. bench/gpu_run makes
// tables of what this writes.

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "measure.hpp"
#include "self_check.hpp"
#include "stopwatch.cuh"

namespace {

using namespace terse;
using namespace terse::bench::gpu;
using Cuda = executor::cuda;
using terse::detail::check_cuda;

struct Settings {
  index_t elements = 256 * mebi;
  int rounds = 25;
  int device = 0;
  std::string json, only;
  bool check_only = false;
};

/// On the device, for steps of n elements and what surrounds them; compressors need less.
double bytes_needed(index_t n) { return 9.5 * 4 * static_cast<double>(n) + 1e9; }

const char* const usage =
    "bench_gpu [--elements N (268435456)] [--rounds R (25)] [--only TEXT] [--json FILE] [--device K] "
    "[--check-only]\n"
    "Times the local passes of 1-bit Adam and Adam and those of compressors on a CUDA device, compared with "
    "its copy.\n"
    "--elements    floats of a step and of the largest messages, rounded down to a multiple of 16384\n"
    "--rounds      timings of each line, of which the median counts\n"
    "--only        lines whose subject/what has TEXT in it, such as 'Adam/update' or 'Uniform<4>'\n"
    "--check-only  stops when host and device have been compared\n"
    "Exits with 77 where there is no device.";

/// Exits where the command line is wrong.
Settings parse(int argc, char** argv) {
  Settings settings;
  const auto wrong = [&](const char* argument) {
    std::fprintf(stderr, "bench_gpu: what is '%s'?\n%s\n", argument, usage);
    std::exit(2);
  };
  for (int k = 1; k < argc; ++k) {
    const std::string name = argv[k];
    if (name == "--help") {
      std::puts(usage);
      std::exit(0);
    }
    if (name == "--check-only") {
      settings.check_only = true;
      continue;
    }
    if (k + 1 == argc) wrong(argv[k]);
    const char* const value = argv[++k];
    const auto number = [&](long long least, long long most) {
      char* end = nullptr;
      const long long parsed = std::strtoll(value, &end, 10);
      if (end == value || *end != 0 || parsed < least || parsed > most) wrong(value);
      return parsed;
    };
    if (name == "--elements")
      settings.elements = number(16384, 1LL << 40) / 16384 * 16384;
    else if (name == "--rounds")
      settings.rounds = static_cast<int>(number(1, 1000000));
    else if (name == "--device")
      settings.device = static_cast<int>(number(0, 1000));
    else if (name == "--only")
      settings.only = value;
    else if (name == "--json")
      settings.json = value;
    else
      wrong(argv[k - 1]);
  }
  return settings;
}

int run(const Settings& settings) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "bench_gpu: no CUDA device here (%s): nothing was measured\n",
                 found == cudaSuccess ? "none is visible" : cudaGetErrorString(found));
    return 77;
  }
  check_cuda(cudaSetDevice(settings.device), "cudaSetDevice");
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, settings.device), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const double free_bytes = static_cast<double>(free);
  std::printf("%s, compute capability %d.%d, %d multiprocessors, L2 %d MiB, %.1f of %.1f GiB free\n",
              device.name, device.major, device.minor, device.multiProcessorCount, device.l2CacheSize >> 20,
              free_bytes / 0x1p30, static_cast<double>(total) / 0x1p30);

  const index_t n = settings.elements;
  if (!settings.check_only && bytes_needed(n) > free_bytes) {
    std::fprintf(stderr, "bench_gpu: %lld elements need %.1f GiB of device memory and %.1f GiB are free",
                 static_cast<long long>(n), bytes_needed(n) / 0x1p30, free_bytes / 0x1p30);
    index_t fits = n / mebi;
    while (fits > 0 && bytes_needed(fits * mebi) > free_bytes) --fits;
    if (fits > 0)
      std::fprintf(stderr, "; --elements %lld fits\n", static_cast<long long>(fits * mebi));
    else
      std::fputs(", too few for any measurement\n", stderr);
    return 2;
  }

  // The larger number is for the sums of long pieces, which take several launches.
  std::size_t compared = 0;
  const std::string difference = difference_from_host(Cuda{}, 3 * 4096 + 130, 2 * mebi + 12345, compared);
  if (!difference.empty()) {
    std::fprintf(stderr, "bench_gpu: host and device differ: %s; nothing was measured\n", difference.c_str());
    return 1;
  }
  std::printf("host and device agree in %zu results\n\n", compared);
  if (settings.check_only) return 0;
  cudaProfilerStart();  // what came before is not what a profiler is asked for, see ncu's --profile-from-start

  Stopwatch clock(device);
  Report report(clock, 3, settings.rounds, settings.only);
  measure_steps(Cuda{}, report, n);
  for (const index_t size : {mebi, 16 * mebi})
    if (size < n) measure_compressors(Cuda{}, report, size);
  measure_compressors(Cuda{}, report, n);
  measure_low_rank(Cuda{}, report, 1024, 1024);
  measure_low_rank(Cuda{}, report, 4096, 4096);
  if (report.empty()) {
    std::fprintf(stderr, "bench_gpu: no line has '%s' in its name\n", settings.only.c_str());
    return 2;
  }
  if (settings.json.empty()) return 0;
  const auto field = [](const char* name, auto value) {
    return ", \"" + std::string(name) + "\": " + std::to_string(value);
  };
  const std::string about =
      "\"device\": {\"name\": " + quoted(device.name) + field("major", device.major) +
      field("minor", device.minor) + field("multiprocessors", device.multiProcessorCount) +
      field("memory_bytes", total) + field("l2_bytes", device.l2CacheSize) + field("driver", driver) +
      field("runtime", runtime) + "}" + field("elements", n) + field("results_compared", compared);
  if (!report.write(settings.json, about)) {
    std::fprintf(stderr, "bench_gpu: cannot write %s\n", settings.json.c_str());
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  try {
    return run(settings);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "bench_gpu: out of memory; try fewer --elements\n");
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "bench_gpu: %s\n", problem.what());
  }
  return 1;
}
