// SPDX-License-Identifier: Apache-2.0

// A LibTorch model trained by ranks that see different pictures. Gradients travel while the backward pass goes on.
//
//   mpirun -n 4 data_parallel

#include <torch/torch.h>

#include <cstdio>

#include "terse/interop/data_parallel.hpp"
#include "terse/terse.hpp"
#include "terse/transport/mpi.hpp"

namespace nn = torch::nn;

void train(terse::Mpi& transport) {
  constexpr std::int64_t pixels = 64, width = 256, classes = 10, batch = 64;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor ideals = torch::randn({classes, pixels});  // the same on all ranks
  torch::manual_seed(2 + static_cast<std::uint64_t>(transport.rank()));

  nn::Sequential net(nn::Linear(pixels, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                     nn::Linear(width, classes));
  const terse::OneBitAdam<> recipe{.learning_rate = 1e-3F, .preconditioner = {.freeze = terse::AtStep{50}}};
  terse::interop::DataParallel model(*net, recipe, transport);  // all ranks start from rank 0's parameters

  for (int step = 1; step <= 200; ++step) {
    const torch::Tensor labels = torch::randint(classes, {batch}, torch::kInt64);
    const torch::Tensor pictures = ideals.index_select(0, labels) + 2 * torch::randn({batch, pixels});
    model.begin();
    const torch::Tensor loss = nn::functional::cross_entropy(net->forward(pictures), labels);
    loss.backward();
    const terse::StepResult result = model.step();

    if (step == 1)
      for (const std::string& name : model.unused()) std::printf("%s gets no gradient\n", name.c_str());
    if (step % 50 == 0) {
      const double mean = terse::mean(transport, loss.item<double>());
      if (transport.rank() == 0)
        std::printf("step %d  loss %.3f  %llu bytes sent\n", step, mean,
                    static_cast<unsigned long long>(result.bytes_sent));
    }
  }
}

int main(int argc, char** argv) { return terse::Mpi::run(argc, argv, train); }
