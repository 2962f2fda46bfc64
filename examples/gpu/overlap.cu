// SPDX-License-Identifier: Apache-2.0

// All GPUs of one machine: gradients of a layer are averaged over NCCL on a stream of their own, while this program's kernels
// compute those of the layers before it.
//
//   nvcc -std=c++20 -arch=native overlap.cu $(pkg-config --cflags --libs terse-cuda terse-nccl) -o overlap

#include <cstdio>
#include <string>

#include "terse/gpus.cuh"

// Of (x - rank)^2 / 2, whose mean over the ranks has its minimum at their mean.
__global__ void compute_gradient(const float* x, float* gradient, std::int64_t size, float rank) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (i < size) gradient[i] = x[i] - rank;
}

void train(terse::cuda::Rank& rank) {
  cudaStream_t compute = nullptr;
  cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
  terse::Layout layout;
  for (int layer = 0; layer < 24; ++layer) layout.add({"layer" + std::to_string(layer), {2048, 2048}});
  {
    const terse::Adam<> recipe{.learning_rate = 0.03F};
    terse::Optimizer optimizer{recipe, rank.transport(), layout, {}, rank.overlapped(compute)};
    terse::buffer<float, terse::memory::device> x(layout.size()), gradient(layout.size());
    for (int step = 0; step < 300; ++step) {
      optimizer.begin(x.all(), gradient.all());
      for (terse::index_t layer = 23; layer >= 0; --layer) {  // as a backward pass does, the last one first
        const terse::Segment& segment = layout.segments()[static_cast<std::size_t>(layer)];
        compute_gradient<<<static_cast<unsigned>((segment.count + 255) / 256), 256, 0, compute>>>(
            x.data() + segment.offset, gradient.data() + segment.offset, segment.count,
            static_cast<float>(rank.rank()));
        optimizer.ready(layer);
      }
      optimizer.step(x.all(), gradient.all());
    }
    float first = 0;
    terse::memory::device::download(&first, x.data(), sizeof first);
    if (rank.rank() == 0)
      std::printf("%.2f, and the mean of the ranks is %.2f\n", static_cast<double>(first),
                  (rank.size() - 1) / 2.0);
  }
  cudaStreamDestroy(compute);
}

int main() {
  try {
    terse::cuda::on_all_gpus(train);
  } catch (const terse::error& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
