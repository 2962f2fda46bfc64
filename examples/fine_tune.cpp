// SPDX-License-Identifier: Apache-2.0

// A LibTorch model cut into four stages, a thread for each. Activations travel as changes since the example's last
// visit, 4 bits an element, and gradients as 8.

#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "terse/interop/libtorch_stage.hpp"
#include "terse/terse.hpp"

namespace nn = torch::nn;
using terse::interop::TorchStage;

int main() {
  constexpr terse::index_t count = 2'048, pixels = 64, width = 256, classes = 10, batch = 64;
  torch::manual_seed(1);
  const torch::Tensor labels = torch::randint(classes, {count}, torch::kInt64);
  const torch::Tensor pictures =
      torch::randn({classes, pixels}).index_select(0, labels) + 2 * torch::randn({count, pixels});
  const auto layer = [](terse::index_t in, terse::index_t out) {
    return nn::Sequential(nn::Linear(in, out), nn::ReLU());
  };
  const auto mean_loss = [](const auto& scores, const auto& truth) {
    return nn::functional::cross_entropy(scores, truth);
  };
  // What an example is at both ends of a stage. The first reads pictures, the last computes the loss.
  TorchStage stages[] = {TorchStage(layer(pixels, width), {{}, {width}}),
                         TorchStage(layer(width, width), {{width}, {width}}),
                         TorchStage(layer(width, width), {{width}, {width}}),
                         TorchStage(nn::Linear(width, classes), {{width}, {}}, mean_loss)};

  terse::ThreadGroup(4).run([&](terse::Threads& transport) {
    torch::set_num_threads(1);
    TorchStage& stage = stages[transport.rank()];
    terse::Pipeline pipeline{terse::AcSgd<>{.capacity = count}, transport, stage, {.micro_batch = 16}};
    terse::Threads alone = transport.split(transport.rank(), 0);  // nobody else has this stage's parameters
    terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 1e-3F}, alone, stage.layout()};
    const terse::index_t size = stage.layout().size();

    for (int epoch = 1; epoch <= 5; ++epoch) {
      const terse::ExampleOrder order(count, 1, epoch);  // the same on all stages
      double loss = 0;
      for (terse::index_t k = 0; k < order.batches(batch); ++k) {
        const auto ids = order.batch(k, batch);
        const torch::Tensor rows = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
        stage.batch(pictures.index_select(0, rows), labels.index_select(0, rows));
        stage.zero_gradients();
        loss += pipeline.train(ids).loss;
        optimizer.step({stage.parameters(), size}, {stage.gradients(), size});
      }
      if (transport.rank() == 0)
        std::printf("epoch %d  loss %.3f\n", epoch, loss / static_cast<double>(order.batches(batch)));
    }
  });
}
