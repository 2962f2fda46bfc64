// SPDX-License-Identifier: Apache-2.0

// A whole training over MPI, without a framework: warmup and cosine, gradients of several batches to a step, clipping, evaluation,
// and a run that goes on where it was stopped. A linear classifier of noisy pictures.
//
//   mpirun -n 4 mpi_training FOLDER [STEP]     up to STEP, 300 unless given; again, and it goes on

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "terse/checkpoint/folder.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/rate_schedule.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"

constexpr std::size_t pixels = 64, classes = 10;
using Picture = std::array<float, pixels>;

/// The loss of one noisy picture of a class; adds its gradient. `x` is the matrix of weights.
double loss_of(const std::vector<float>& x, const Picture& ideal, std::size_t label, std::mt19937& random,
               std::vector<float>& gradient, bool& right) {
  std::normal_distribution<float> noise(0, 2);
  Picture picture = ideal;
  for (float& pixel : picture) pixel += noise(random);
  std::array<float, classes> score{};
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t p = 0; p < pixels; ++p) score[c] += x[c * pixels + p] * picture[p];
  const auto best = std::max_element(score.begin(), score.end());
  right = best == score.begin() + static_cast<std::ptrdiff_t>(label);
  const float most = *best, own = score[label] - most;
  float sum = 0;
  for (float& s : score) sum += s = std::exp(s - most);
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t p = 0; p < pixels; ++p)
      gradient[c * pixels + p] += (score[c] / sum - (c == label ? 1.0F : 0.0F)) * picture[p];
  return std::log(sum) - own;
}

int main(int argc, char** argv) {
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& transport) {
    if (argc < 2) throw terse::usage_error("usage: mpi_training FOLDER [STEP]");
    const std::uint64_t steps = 300;
    const int last = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(steps);
    constexpr int batches = 2, batch = 16;
    std::array<Picture, classes> ideals;  // the same on all ranks
    std::mt19937 common(1);
    std::normal_distribution<float> normal;
    for (Picture& ideal : ideals) std::generate(ideal.begin(), ideal.end(), [&] { return normal(common); });

    terse::Layout layout;
    layout.add({"weights", {classes, pixels}});
    std::vector<float> x(static_cast<std::size_t>(layout.size())), gradient(x.size());
    const terse::OneBitAdam<> recipe{.bias_correction = true,
                                     .preconditioner = {.freeze = terse::AtStep{60}}};
    terse::Optimizer optimizer{recipe, transport, layout, {.clip_norm = 1}};
    const terse::CosineSchedule rate{.peak = 0.02F, .steps = steps, .warmup = 30};
    terse::checkpoint::Folder folder(argv[1], transport);
    if (folder.load(optimizer, x) && transport.rank() == 0)
      std::printf("resumes after step %llu\n", static_cast<unsigned long long>(optimizer.steps()));

    for (int step = static_cast<int>(optimizer.steps()) + 1; step <= last; ++step) {
      // By rank and step, so that a run that was stopped draws what it would have drawn.
      std::mt19937 random(static_cast<std::uint32_t>(step * transport.size() + transport.rank()));
      std::fill(gradient.begin(), gradient.end(), 0.0F);
      bool right = false;
      for (int k = 0; k < batches * batch; ++k) {
        const std::size_t label = random() % classes;
        loss_of(x, ideals[label], label, random, gradient, right);
      }
      optimizer.learning_rate(rate(optimizer.steps() + 1));
      const terse::StepResult result = optimizer.step(x, gradient, 1.0F / (batches * batch));
      if (step % 50 != 0 && step != last) continue;

      std::mt19937 held_out(~static_cast<std::uint32_t>(transport.rank()));
      std::vector<float> nothing(x.size());
      double loss = 0, correct = 0;
      for (std::size_t k = 0; k < 500; ++k) {
        loss += loss_of(x, ideals[k % classes], k % classes, held_out, nothing, right) / 500;
        correct += right ? 1.0 / 500 : 0;
      }
      loss = terse::mean(transport, loss);
      correct = terse::mean(transport, correct);
      if (transport.rank() == 0)
        std::printf("step %d  loss %.3f  %.1f %% right  %llu bytes sent\n", step, loss, 100 * correct,
                    static_cast<unsigned long long>(result.bytes_sent));
      folder.save(optimizer, x);
    }
  });
}
