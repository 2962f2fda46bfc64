// SPDX-License-Identifier: Apache-2.0

// All GPUs of one machine, a thread for each, without MPI: 1-bit Adam over NCCL, on a gradient that a kernel computes.
//
//   nvcc -std=c++20 -arch=native one_box.cu $(pkg-config --cflags --libs terse-cuda terse-nccl) -o one_box

#include <cstdio>

#include "terse/gpus.cuh"

// Of (x - rank)^2 / 2, whose mean over the ranks has its minimum at their mean.
__global__ void compute_gradient(const float* x, float* gradient, std::int64_t size, float rank) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (i < size) gradient[i] = x[i] - rank;
}

void train(terse::cuda::Rank& rank) {
  const terse::Layout layout = terse::Layout::flat(10'000'000);
  const terse::OneBitAdam<> recipe{.learning_rate = 0.03F, .preconditioner = {.freeze = terse::AtStep{100}}};
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
}

int main() {
  try {
    terse::cuda::on_all_gpus(train);
  } catch (const terse::error& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
