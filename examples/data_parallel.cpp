// SPDX-License-Identifier: Apache-2.0

// A LibTorch model trained by ranks that see different pictures: warmup and cosine, two batches to a step, clipping, evaluation, and
// a run that goes on where it was stopped. Full-precision gradients travel while the backward pass goes on; compressed ones, which are
// clipped, wait for its end.
//
//   mpirun -n 4 data_parallel FOLDER [STEP]     up to STEP, 200 unless given; again, and it goes on

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "terse/interop/checkpoint.hpp"
#include "terse/interop/data_parallel.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/rate_schedule.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"

namespace nn = torch::nn;

constexpr std::int64_t pixels = 64, width = 256, classes = 10;

struct Batch {
  torch::Tensor pictures, labels;
  Batch(const torch::Tensor& ideals, std::int64_t size, std::uint64_t seed) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
    labels = torch::randint(classes, {size}, random, torch::kInt64);
    pictures = ideals.index_select(0, labels) + 2 * torch::randn({size, pixels}, random);
  }
};

void train(terse::Mpi& transport, const char* place, int last, int steps) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::Tensor ideals = torch::randn({classes, pixels});  // the same on all ranks
  nn::Sequential net(nn::Linear(pixels, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                     nn::Linear(width, classes));

  const terse::OneBitAdam<> recipe{.weight_decay = 1e-2F,
                                   .bias_correction = true,  // for a freeze as early as this
                                   .preconditioner = {.freeze = terse::AtStep{50}}};
  // All ranks start from rank 0's parameters.
  terse::interop::DataParallel model(net, recipe, transport, {.clip_norm = 1}, [](terse::Segment& segment) {
    if (segment.shape.size() == 1) segment.weight_decay = 0;  // no decay of biases
  });
  const terse::CosineSchedule rate{.peak = 2e-3F, .steps = static_cast<std::uint64_t>(steps), .warmup = 20};
  terse::checkpoint::Folder folder(place, transport);
  if (terse::interop::load(folder, model) && transport.rank() == 0)
    std::printf("resumes after step %llu\n", static_cast<unsigned long long>(model.optimizer().steps()));

  for (int step = static_cast<int>(model.optimizer().steps()) + 1; step <= last; ++step) {
    model.optimizer().learning_rate(rate(model.optimizer().steps() + 1));
    model.begin(2, 1.0F / 2);  // two backward passes, and their mean
    for (int pass = 0; pass < 2; ++pass) {
      // By step and rank, so that a run that was stopped draws what it would have drawn.
      const Batch batch(ideals, 32, static_cast<std::uint64_t>((2 * step + pass) * 1000 + transport.rank()));
      nn::functional::cross_entropy(net->forward(batch.pictures), batch.labels).backward();
    }
    const terse::StepResult result = model.step();

    if (step == 1)
      for (const std::string& name : model.unused()) std::printf("%s gets no gradient\n", name.c_str());
    if (step % 50 != 0 && step != last) continue;
    const torch::NoGradGuard no_gradients;
    const Batch unseen(ideals, 500, static_cast<std::uint64_t>(transport.rank()));
    const double right = terse::mean(
        transport,
        net->forward(unseen.pictures).argmax(1).eq(unseen.labels).to(torch::kDouble).mean().item<double>());
    if (transport.rank() == 0)
      std::printf("step %d  %.1f %% right  %llu bytes sent\n", step, 100 * right,
                  static_cast<unsigned long long>(result.bytes_sent));
    terse::interop::save(folder, model);
  }
}

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& transport) {
    if (argc < 2) throw terse::usage_error("usage: data_parallel FOLDER [STEP]");
    train(transport, argv[1], argc > 2 ? std::atoi(argv[2]) : 200, 200);
  });
}
