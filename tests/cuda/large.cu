// SPDX-License-Identifier: Apache-2.0

// More elements than 32 bits count, on a GPU against the host, bit for bit. Takes 27 GB of each one's memory and a minute.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "bench/gpu/passes.hpp"
#include "terse/device/cuda.cuh"
#include "terse/executor/host.hpp"

namespace {

using namespace terse;
using namespace terse::bench::gpu;

struct Ramp {
  float* to;
  TERSE_HD void operator()(const Piece&, index_t i) const {
    to[i] = static_cast<float>(i % 8191 - 4095) * static_cast<float>(1 + i % 7);
  }
};

template <Executor E>
struct Passes {
  Floats<E> samples, x;
  CompressorPasses<Sign, Residual, E> passes;

  Passes(E ex, const Layout& layout)
      : samples(layout.size()), x(layout.size()), passes(ex, layout, samples.data(), x.data()) {
    for_each(ex, layout.range(), Ramp{samples.data()});
    for_each(ex, layout.range(), Ramp{x.data()});
    for (int step = 0; step < 2; ++step) {
      passes.send();
      passes.accumulate();
    }
    if constexpr (requires { ex.synchronize(); }) ex.synchronize();
  }
};

/// The first element that differs; -1: none does.
template <class T>
index_t difference(view<const T> here, view<const T, memory::device> there) {
  constexpr index_t together = index_t{1} << 26;
  std::vector<T> brought(static_cast<std::size_t>(together));
  for (index_t begin = 0; begin < here.size(); begin += together) {
    const index_t count = std::min(together, here.size() - begin);
    const view<T> part(brought.data(), count);
    download(view<const T, memory::device>(there.data() + begin, count), part);
    if (std::memcmp(brought.data(), here.data() + begin, static_cast<std::size_t>(count) * sizeof(T)) != 0)
      for (index_t k = 0; k < count; ++k)
        if (std::memcmp(&brought[static_cast<std::size_t>(k)], here.data() + begin + k, sizeof(T)) != 0)
          return begin + k;
  }
  return -1;
}

int compare() {
  const Layout layout = Layout::flat((index_t{1} << 31) + 3 * 4096 + 130);
  std::size_t free = 0, total = 0;
  detail::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (static_cast<double>(free) < 13.0 * static_cast<double>(layout.size())) {
    std::puts("too little memory is free on the device: skipped");
    return 77;
  }
  Passes<executor::cuda> there(executor::cuda{}, layout);
  Passes<executor::host> here(executor::host{}, layout);
  int status = EXIT_SUCCESS;
  const auto judge = [&](const char* what, index_t first) {
    if (first >= 0) {
      std::printf("%s: host and device differ from %lld on\n", what, static_cast<long long>(first));
      status = EXIT_FAILURE;
    }
  };
  judge("packet", difference(here.passes.packet(), there.passes.packet()));
  judge("parameters",
        difference(view<const float>(here.x.all()), view<const float, memory::device>(there.x.all())));
  if (status == EXIT_SUCCESS)
    std::printf("%lld elements, equal bits\n", static_cast<long long>(layout.size()));
  return status;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  try {
    return compare();
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return EXIT_FAILURE;
  }
}
