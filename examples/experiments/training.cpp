// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <thread>

#include "experiment.hpp"
#include "terse/transport/thread.hpp"

namespace experiments {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t pixels = 784, tested = 5000;
constexpr std::uint64_t warmup = 20, averaged = 60;

float share_of_rate(std::uint64_t step, std::uint64_t steps) {
  const double rise = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warmup));
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return static_cast<float>(rise * (0.55 + 0.45 * std::cos(std::numbers::pi * done)));
}

/// Drawn with replacement, apart for each rank.
Batch draw_batch(const Dataset& data, const Training& training, int rank, std::uint64_t step,
                 std::uint64_t seed) {
  const terse::Draw draw = terse::Draw::local(seed, rank, step, terse::Purpose::user);
  Batch batch(static_cast<std::size_t>(training.batch));
  for (std::size_t k = 0; k < batch.size(); ++k)
    batch[k] = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(data.count), k));
  return batch;
}

/// What one rank has seen.
struct Witness {
  std::vector<double> losses;
  std::vector<float> before, x;
  std::uint64_t bytes = 0, burst = 0;
  double stall = 0;
};

Witness train_rank(const Task& task, const Training& training, const Maker& make, std::uint64_t seed,
                   terse::AnyTransport& transport) {
  const std::unique_ptr<AnyOptimizer> optimizer = make(transport, seed);
  Model model(training.width);
  Witness witness;
  witness.x = Model::start(seed, training.width);
  std::vector<float> g(witness.x.size());
  const auto begin = Clock::now();
  auto busy = Clock::duration::zero();
  for (std::uint64_t step = 0; step < training.steps; ++step) {
    const auto ready = Clock::now() + training.pace;
    const Batch batch = draw_batch(task.training, training, transport.rank(), step, seed);
    witness.losses.push_back(model.gradient(witness.x, task.training, batch, g));
    std::this_thread::sleep_until(ready);
    busy += training.pace;
    const std::uint64_t sent = optimizer->step(witness.x, g, share_of_rate(step, training.steps));
    witness.bytes += sent;
    witness.burst = std::max(witness.burst, sent);
    if (step + 1 == training.steps * 3 / 4) witness.before = witness.x;
  }
  witness.stall = std::chrono::duration<double, std::milli>(Clock::now() - begin - busy).count();
  return witness;
}

std::vector<float> mean_of(const std::vector<Witness>& ranks, std::vector<float> Witness::*x) {
  std::vector<float> mean((ranks.front().*x).size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const Witness& rank : ranks) sum += static_cast<double>((rank.*x)[i]);
    mean[i] = static_cast<float>(sum / static_cast<double>(ranks.size()));
  }
  return mean;
}
double spread_of(const std::vector<Witness>& ranks, std::vector<float> Witness::*x) {
  const std::vector<float> mean = mean_of(ranks, x);
  double sum = 0;
  for (const Witness& rank : ranks)
    for (std::size_t i = 0; i < mean.size(); ++i)
      sum += std::pow(static_cast<double>((rank.*x)[i] - mean[i]), 2);
  return std::sqrt(sum / static_cast<double>(ranks.size()));
}
double moved_dead_weights(const std::vector<float>& x, int width, std::uint64_t seed) {
  const std::vector<float> start = Model::start(seed, width);
  const terse::Segment first = Model::layout(width).segments().front();
  float most = 0;
  for (terse::index_t i = first.offset; i < first.offset + first.count; i += pixels)
    most = std::max(most, std::abs(x[static_cast<std::size_t>(i)] - start[static_cast<std::size_t>(i)]));
  return static_cast<double>(most);
}

}  // namespace

Figures run(const Task& task, const Training& training, const Maker& make, std::uint64_t seed) {
  std::vector<Witness> ranks(static_cast<std::size_t>(training.ranks));
  terse::ThreadGroup(training.ranks).run([&](terse::Threads& threads) {
    terse::Threads own = threads.split(0, threads.rank());
    terse::AnyTransport transport =
        training.link ? terse::AnyTransport(terse::Delayed<terse::Threads>(std::move(own), *training.link))
                      : terse::AnyTransport(std::move(own));
    ranks[static_cast<std::size_t>(threads.rank())] = train_rank(task, training, make, seed, transport);
  });

  const auto steps = static_cast<double>(training.steps), count = static_cast<double>(training.ranks);
  const auto last = static_cast<std::ptrdiff_t>(std::min(averaged, training.steps));
  Figures figures;
  for (const Witness& rank : ranks) {
    figures.loss +=
        std::accumulate(rank.losses.end() - last, rank.losses.end(), 0.0) / static_cast<double>(last) / count;
    figures.bytes += static_cast<double>(rank.bytes) / steps / count;
    figures.burst = std::max(figures.burst, static_cast<double>(rank.burst));
    figures.stall = std::max(figures.stall, rank.stall / steps);
  }
  const std::vector<float> mean = mean_of(ranks, &Witness::x);
  figures.accuracy = Model(training.width).score(mean, task.test, std::min(tested, task.test.count)).accuracy;
  figures.spread = spread_of(ranks, &Witness::x);
  if (!ranks.front().before.empty()) figures.spread_before = spread_of(ranks, &Witness::before);
  figures.dead = moved_dead_weights(mean, training.width, seed);
  return figures;
}

}  // namespace experiments
