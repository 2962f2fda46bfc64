// SPDX-License-Identifier: Apache-2.0

// A LibTorch module on all GPUs of one machine: 1-bit Adam over NCCL, whose messages leave during the backward pass. Requires a
// LibTorch with CUDA, here at $TORCH_ROOT.
//
//   nvcc -std=c++20 -O2 -arch=native -c optimizer.cu $(pkg-config --cflags terse-cuda terse-nccl)
//   g++ -std=c++20 -O2 data_parallel.cpp optimizer.o -I/usr/local/cuda/include -L/usr/local/cuda/lib64
//     $(pkg-config --cflags --libs terse-libtorch terse-nccl) -lc10_cuda -Wl,--no-as-needed -ltorch_cuda -o data_parallel

#include <torch/torch.h>

#include <cstdio>

#include "terse/device/gpu_rank.hpp"
#include "terse/interop/data_parallel_cuda.hpp"
#include "terse/optimizer/one_bit_adam.hpp"

namespace nn = torch::nn;

void train(terse::GpuRank& rank) {
  const torch::Device gpu(torch::kCUDA, static_cast<c10::DeviceIndex>(rank.device()));
  nn::Sequential net(nn::Linear(784, 2048), nn::ReLU(), nn::Linear(2048, 2048), nn::ReLU(),
                     nn::Linear(2048, 10));
  net->to(gpu);
  const terse::OneBitAdam<> recipe{.learning_rate = 1e-3F, .preconditioner = {.freeze = terse::AtStep{200}}};
  terse::interop::DataParallel model(net, recipe, rank.transport());
  for (int step = 1; step <= 1000; ++step) {
    const torch::Tensor labels = torch::randint(10, {64}, torch::dtype(torch::kLong).device(gpu));
    const torch::Tensor inputs = torch::randn({64, 784}, gpu) + labels.unsqueeze(1) / 10;
    model.begin();
    const torch::Tensor loss = nn::functional::cross_entropy(net->forward(inputs), labels);
    loss.backward();
    model.step();
    if (step % 100 == 0 && rank.rank() == 0) std::printf("step %d: loss %.3f\n", step, loss.item<double>());
  }
}

int main() {
  try {
    terse::on_all_gpus(train);
  } catch (const terse::error& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
