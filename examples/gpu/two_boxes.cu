// SPDX-License-Identifier: Apache-2.0

// Machines of several GPUs, a process for each GPU: full precision within a machine, one bit an element between machines.
//
//   nvcc -std=c++20 -arch=native two_boxes.cu $(pkg-config --cflags --libs terse-cuda terse-nccl mpi-cxx) -lboost_mpi -lboost_serialization -o two_boxes
//   mpirun -n 16 --map-by ppr:8:node two_boxes 8

#include <cstdio>
#include <cstdlib>

#include "terse/exchange/hierarchical.hpp"
#include "terse/gpus.cuh"
#include "terse/transport/mpi.hpp"

__global__ void compute_gradient(const float* x, float* gradient, std::int64_t size, float rank) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (i < size) gradient[i] = x[i] - rank;
}

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& boot) {
    if (argc != 2) throw terse::usage_error("usage: two_boxes RANKS_PER_MACHINE");
    terse::cuda::Rank rank(boot);
    const terse::Layout layout = terse::Layout::flat(10'000'000);
    const terse::OneBitAdam<terse::Hierarchical<>> recipe{.learning_rate = 0.03F,
                                                          .preconditioner = {.freeze = terse::AtStep{100}},
                                                          .topology = {.ranks_per_node = std::atoi(argv[1])}};
    terse::Optimizer optimizer{recipe, rank.transport(), layout, {}, rank.executor()};
    terse::buffer<float, terse::memory::device> x(layout.size()), gradient(layout.size());
    for (int step = 0; step < 300; ++step) {
      compute_gradient<<<static_cast<unsigned>((layout.size() + 255) / 256), 256, 0, rank.stream()>>>(
          x.data(), gradient.data(), layout.size(), static_cast<float>(rank.rank()));
      optimizer.step(x.all(), gradient.all());
    }
    float first = 0;
    terse::memory::device::download(&first, x.data(), sizeof first);
    if (rank.rank() == 0)
      std::printf("%.2f, and the mean of the ranks is %.2f\n", static_cast<double>(first),
                  (rank.size() - 1) / 2.0);
  });
}
