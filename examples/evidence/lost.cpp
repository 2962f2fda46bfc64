// SPDX-License-Identifier: Apache-2.0

// One row of `lost`: asynchronous SwarmSGD on 8 threads, of which rank 0 is four times slower and another one throws at a random moment;
// the others go on. Ranks sleep until a gradient has taken a fixed time. Prints a line of JSON: seconds from the loss until the last rank
// has gone on, the share of time in which fast ranks computed no gradient, and the held-out loss of the mean model of the ranks that are left.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../experiments/model.hpp"
#include "terse/optimizer/carry_over.hpp"
#include "terse/terse.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Method = terse::AsyncSwarmSgd<terse::MomentumSgd<>>;
using Optimizer = terse::Optimizer<Method, terse::Threads>;

constexpr int ranks = 8, slow = 0;
constexpr std::int64_t tested = 5000;

struct Run {
  std::uint64_t seed = 1;
  bool lose = false;
  double seconds = 6, gradient = 0.02, rate = 0.025;
  std::string data = "/usr/share/datasets/fashion-mnist";
};

/// Measurements of all ranks.
struct Found {
  std::mutex mutex;
  double lost = 0, gone_on = 0;         // seconds since the start
  double fast_idle = 0, fast_time = 0;  // sums over fast ranks
  std::vector<float> model;             // of rank 0, the mean
};

/// Trains one rank for `run.seconds`; rank `victim` throws at `moment`.
void train(const Run& run, const train::Dataset& images, int victim, double moment, terse::Threads& all,
           Found& found) {
  const int me = all.rank();
  const terse::Layout layout = experiments::Model::layout();
  terse::Threads transport = all.split(0, me);
  auto optimizer = std::make_unique<Optimizer>(
      Method{.inner = {.learning_rate = static_cast<float>(run.rate)}, .period = 8}, all, layout,
      terse::Options{.seed = run.seed});
  experiments::Model model;
  std::vector<float> x = experiments::Model::start(run.seed), g(x.size());
  experiments::Batch batch(32);
  terse::barrier(transport);
  const Clock::time_point begin = Clock::now();
  const auto now = [&] { return Seconds(Clock::now() - begin).count(); };
  terse::Threads* group = &all;
  std::unique_ptr<terse::Threads> others;
  double idle = 0;
  for (double start = now(); start < run.seconds; start = now()) {
    if (me == victim && start >= moment) {
      const std::scoped_lock lock(found.mutex);
      found.lost = start;
      throw std::runtime_error("lost");
    }
    const terse::Draw draw = terse::Draw::local(run.seed, me, optimizer->steps(), terse::Purpose::user);
    for (std::size_t k = 0; k < batch.size(); ++k)
      batch[k] = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(images.count), k));
    model.gradient(x, images, batch, g);
    std::this_thread::sleep_until(begin + Seconds(start + (me == slow ? 4 : 1) * run.gradient));
    const double computed = now();
    try {
      group->here();  // an asynchronous rank waits for no other, so it asks
      optimizer->step(x, g);
    } catch (const terse::peer_error&) {
      others = std::make_unique<terse::Threads>(group->regroup().transport);
      group = others.get();
      auto next = std::make_unique<Optimizer>(optimizer->recipe, *group, layout, optimizer->options());
      terse::carry_over(*optimizer, *next, x);
      optimizer = std::move(next);
      const std::scoped_lock lock(found.mutex);
      found.gone_on = std::max(found.gone_on, now());
    }
    idle += now() - computed;
  }
  const double time = now();
  terse::mean(*group, x);
  const std::scoped_lock lock(found.mutex);
  if (me != slow) {
    found.fast_idle += idle;
    found.fast_time += time;
  }
  if (me == slow) found.model = x;
}

void train_all(const Run& run) {
  const train::Dataset images = train::load_images_labels(run.data, true),
                       test = train::load_images_labels(run.data, false);
  const terse::Draw draw = terse::Draw::shared(run.seed, 0, terse::Purpose::user);
  const int victim = run.lose ? 1 + static_cast<int>(draw.below(ranks - 1, 0)) : -1;
  const double moment = run.seconds * (0.1 + 0.8e-3 * static_cast<double>(draw.below(1000, 1)));
  Found found;
  terse::ThreadGroup(ranks, std::chrono::seconds(10)).run([&](terse::Threads& transport) {
    train(run, images, victim, moment, transport, found);
  });
  experiments::Model model;
  const experiments::Score score = model.score(found.model, test, tested);
  fmt::print(
      R"({{"done": 1, "rank": {}, "moment": {:.3f}, "seconds": {:.4f}, "idle": {:.4f}, "loss": {:.5f}, "accuracy": {:.4f}}})"
      "\n",
      victim, found.lost, run.lose ? found.gone_on - found.lost : 0, found.fast_idle / found.fast_time,
      score.loss, score.accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Run run;
  CLI::App app{
      "Trains a perceptron by 8 threads, one of which is slow and another one is lost, and prints a line of "
      "JSON."};
  app.option_defaults()->always_capture_default();
  app.add_flag("--lose", run.lose, "a rank, at a random moment");
  app.add_option("--seed", run.seed);
  app.add_option("--seconds", run.seconds, "of the training")->check(CLI::PositiveNumber);
  app.add_option("--gradient", run.gradient, "seconds of a gradient; rank 0's takes four times as long")
      ->check(CLI::PositiveNumber);
  app.add_option("--rate", run.rate, "the learning rate")->check(CLI::PositiveNumber);
  app.add_option("--data", run.data);
  CLI11_PARSE(app, argc, argv);
  try {
    train_all(run);
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    fmt::print(stderr, "lost: {}\n", fault.what());
    return EXIT_FAILURE;
  }
}
