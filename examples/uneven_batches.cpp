// SPDX-License-Identifier: Apache-2.0

// A LibTorch model with batch normalization on ranks that have different numbers of batches, which `DistributedDataParallel` has
// `join` for. Adam, whose ranks are equal, uses all batches: who has none left takes part with a gradient of zero. Local SGD stops
// where the first rank would have none, and evaluates the mean of the models, which its ranks differ from.
//
//   mpirun -n 3 uneven_batches

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "terse/interop/data_parallel.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"

namespace nn = torch::nn;

constexpr std::int64_t pixels = 64, width = 128, classes = 10;

struct Batch {
  torch::Tensor pictures, labels;
  Batch(const torch::Tensor& ideals, std::int64_t size, int seed) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
    labels = torch::randint(classes, {size}, random, torch::kInt64);
    pictures = ideals.index_select(0, labels) + 2 * torch::randn({size, pixels}, random);
  }
};

/// Evaluates the mean of all ranks' models, each rank on pictures of its own. Collective.
template <class Model>
double right(Model& model, nn::Sequential& net, const Batch& unseen) {
  auto& channel = model.optimizer().channel();
  // Running statistics are of each rank's own passes. From here on all have their mean.
  for (const torch::Tensor& buffer : net->buffers())
    if (buffer.is_floating_point())
      terse::mean(channel, terse::view<float>(buffer.data_ptr<float>(), buffer.numel()));
  std::vector<float> other(static_cast<std::size_t>(model.parameters().size()));
  model.optimizer().mean_parameters(model.parameters(), other);

  std::swap_ranges(other.begin(), other.end(), model.parameters().begin());  // the mean into the module
  net->eval();
  torch::Tensor hits;
  {
    const torch::NoGradGuard no_gradients;
    hits = net->forward(unseen.pictures).argmax(1).eq(unseen.labels).to(torch::kDouble);
  }
  net->train();
  std::swap_ranges(other.begin(), other.end(), model.parameters().begin());  // this rank's own back
  return terse::mean(channel, hits.mean().template item<double>());
}

template <class R>
void train(terse::Mpi& transport, const char* name, const R& recipe, bool all_batches) {
  torch::manual_seed(1);
  const torch::Tensor ideals = torch::randn({classes, pixels});
  nn::Sequential net(nn::Linear(pixels, width), nn::BatchNorm1d(width), nn::ReLU(),
                     nn::Linear(width, classes));
  terse::interop::DataParallel model(net, recipe, transport);

  const int own = 60 - 10 * (transport.rank() % 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    // All ranks take every step, so they agree on their number first.
    const std::vector<int> batches = terse::all_gather(transport, own);
    const int steps = all_batches ? *std::max_element(batches.begin(), batches.end())
                                  : *std::min_element(batches.begin(), batches.end());
    for (int step = 0; step < steps; ++step) {
      // Optimizers divide by all ranks: the mean over those with a batch is that times ranks / those.
      const auto busy =
          std::count_if(batches.begin(), batches.end(), [&](int count) { return step < count; });
      model.begin(1, static_cast<float>(transport.size()) / static_cast<float>(busy));
      if (step < own) {
        const Batch batch(ideals, 32, 1000 * epoch + 3 * step + transport.rank() % 3);
        nn::functional::cross_entropy(net->forward(batch.pictures), batch.labels).backward();
      }
      model.step();
    }
    const double accuracy = right(model, net, Batch(ideals, 500, 10000 + transport.rank()));
    if (transport.rank() == 0)
      std::printf("%s, epoch %d of %d steps: %.1f %% right\n", name, epoch, steps, 100 * accuracy);
  }
}

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [](terse::Mpi& transport) {
    torch::set_num_threads(1);
    const terse::Adam<> adam{.learning_rate = 2e-3F};
    train(transport, "Adam", adam, true);
    train(transport, "local SGD", terse::LocalSgd<terse::Adam<>>{.inner = adam, .period = 8}, false);
  });
}
