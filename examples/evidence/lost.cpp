// SPDX-License-Identifier: Apache-2.0

// One row of `lost`: asynchronous SwarmSGD on 8 threads, of which rank 0 is four times slower and another one throws at a random moment;
// the others go on, and a rank may join them later in its place. Ranks sleep until a gradient has taken a fixed time. Prints a line of
// JSON: seconds from the loss until the last rank has gone on, and from the call of the rank that joins until the last rank has gone on with it,
// the share of time in which fast ranks computed no gradient, and the held-out loss of the mean model of all present ranks.

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
  double seconds = 6, gradient = 0.02, rate = 0.025, back = 0;
  std::string data = "/usr/share/datasets/fashion-mnist";
};

/// Measurements of all ranks.
struct Found {
  std::mutex mutex;
  Clock::time_point begin;
  double lost = 0, gone_on = 0;         // seconds since the start
  double asked = 0, joined = 0;         // of a rank that joins
  double fast_idle = 0, fast_time = 0;  // sums over fast ranks
  std::vector<float> model;             // of rank 0, the mean
};

/// Trains one rank for `run.seconds`, on the examples of rank `number`; rank `victim` throws at `moment`.
void train(const Run& run, const train::Dataset& images, int number, bool joins, int victim, double moment,
           terse::Threads& transport, Found& found) {
  const terse::Layout layout = experiments::Model::layout();
  const auto over = [&] {
    return std::make_unique<Optimizer>(
        Method{.inner = {.learning_rate = static_cast<float>(run.rate)}, .period = 8}, transport, layout,
        terse::Options{.seed = run.seed});
  };
  std::unique_ptr<Optimizer> optimizer = over();
  experiments::Model model;
  std::vector<float> x = experiments::Model::start(run.seed), g(x.size());
  experiments::Batch batch(32);
  if (joins) {
    terse::carry_over(*optimizer, x);
  } else {
    if (number == slow) found.begin = Clock::now();
    terse::barrier(transport);
  }
  const auto now = [&] { return Seconds(Clock::now() - found.begin).count(); };
  const auto go_on = [&](terse::Threads ranks, double& since) {
    transport = std::move(ranks);
    std::unique_ptr<Optimizer> next = over();
    terse::carry_over(*optimizer, *next, x);
    optimizer = std::move(next);
    const std::scoped_lock lock(found.mutex);
    since = std::max(since, now());
  };
  double idle = 0;
  const double first = joins ? now() : 0;
  for (double start = first; start < run.seconds; start = now()) {
    if (number == victim && !joins && start >= moment) {
      const std::scoped_lock lock(found.mutex);
      found.lost = start;
      throw std::runtime_error("lost");
    }
    const terse::Draw draw = terse::Draw::local(run.seed, number, optimizer->steps(), terse::Purpose::user);
    for (std::size_t k = 0; k < batch.size(); ++k)
      batch[k] = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(images.count), k));
    model.gradient(x, images, batch, g);
    std::this_thread::sleep_until(found.begin + Seconds(start + (number == slow ? 4 : 1) * run.gradient));
    const double computed = now();
    try {
      transport.here();  // an asynchronous rank waits for no other, so it asks
      if (auto wider = transport.admit(true)) go_on(std::move(wider->transport), found.joined);
      optimizer->step(x, g);
    } catch (const terse::peer_error&) {
      go_on(transport.regroup().transport, found.gone_on);
    }
    idle += now() - computed;
  }
  const double time = now() - first;
  terse::mean(transport, x);
  const std::scoped_lock lock(found.mutex);
  if (number != slow) {
    found.fast_idle += idle;
    found.fast_time += time;
  }
  if (number == slow) found.model = x;
}

void train_all(const Run& run) {
  const train::Dataset images = train::load_images_labels(run.data, true),
                       test = train::load_images_labels(run.data, false);
  const terse::Draw draw = terse::Draw::shared(run.seed, 0, terse::Purpose::user);
  const int victim = run.lose ? 1 + static_cast<int>(draw.below(ranks - 1, 0)) : -1;
  const double moment = run.seconds * (0.1 + 0.8e-3 * static_cast<double>(draw.below(1000, 1)));
  Found found;
  terse::ThreadGroup group(ranks, std::chrono::seconds(10));
  std::thread back;
  if (run.back > 0)
    back = std::thread([&] {
      std::this_thread::sleep_for(Seconds(moment + run.back));
      const Clock::time_point asked = Clock::now();
      try {
        group.add_rank([&](terse::Threads& transport) {
          found.asked = Seconds(asked - found.begin).count();
          train(run, images, victim, true, -1, 0, transport, found);
        });
      } catch (const std::exception& fault) {
        fmt::print(stderr, "lost: the rank that joins: {}\n", fault.what());
      }
    });
  group.run([&](terse::Threads& transport) {
    train(run, images, transport.rank(), false, victim, moment, transport, found);
  });
  if (back.joinable()) back.join();
  experiments::Model model;
  const experiments::Score score = model.score(found.model, test, tested);
  fmt::print(
      R"({{"done": 1, "rank": {}, "moment": {:.3f}, "seconds": {:.4f}, "joined": {:.4f}, "idle": {:.4f}, "loss": {:.5f}, "accuracy": {:.4f}}})"
      "\n",
      victim, found.lost, run.lose ? found.gone_on - found.lost : 0,
      run.back > 0 ? found.joined - found.asked : 0, found.fast_idle / found.fast_time, score.loss,
      score.accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  Run run;
  CLI::App app{
      "Trains a perceptron by 8 threads, one of which is slow and another one is lost, and prints a line of "
      "JSON."};
  app.option_defaults()->always_capture_default();
  app.add_flag("--lose", run.lose, "a rank, at a random moment");
  app.add_option("--back", run.back, "seconds after the loss when a rank joins in its place; 0: none does")
      ->check(CLI::NonNegativeNumber);
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
