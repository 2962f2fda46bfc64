// SPDX-License-Identifier: Apache-2.0

// One row of `batches`: trains the perceptron by 8 threads with one of the trainer's methods and a batch of all ranks together, for a
// given number of examples, at several learning rates. Prints a line of JSON for each rate: scores of the ranks' mean model, and the
// distance between ranks.

#include <CLI/CLI.hpp>
#include <numbers>
#include <numeric>
#include <stdexcept>

#include "../../tools/train/label_skew.hpp"
#include "perceptron.hpp"
#include "terse/transport/collectives.hpp"

namespace {

using namespace perceptron;

struct Batches {
  std::string method;
  std::vector<double> rates{0.1};
  std::uint64_t examples = 500'000;
  train::Options options;

  std::uint64_t steps() const {
    return std::max<std::uint64_t>(1, examples / static_cast<std::uint64_t>(options.batch));
  }
  /// Rises for a twentieth of the steps, then is constant or falls by half a cosine to 0.
  float rate_at(std::uint64_t step, double highest) const {
    const auto all = static_cast<double>(steps()), now = static_cast<double>(step);
    const double rise = std::ceil(options.learning_rate_warmup * all);
    double height = std::min(1.0, (now + 1) / rise);
    if (options.rate_schedule == train::RateSchedule::cosine && now >= rise)
      height = (1 + std::cos(std::numbers::pi * (now - rise) / (all - rise))) / 2;
    return static_cast<float>(highest * height);
  }
};

/// Returns each rank's training images.
std::vector<std::vector<std::int64_t>> shares(const Batches& run, const Dataset& training) {
  const auto ranks = static_cast<std::size_t>(run.options.ranks);
  std::vector<std::int64_t> all(static_cast<std::size_t>(training.count));
  std::iota(all.begin(), all.end(), 0);
  if (!run.options.label_skew) return std::vector(ranks, all);
  all = train::deal_skewed(training.labels, run.options.ranks, *run.options.label_skew, run.options.seed);
  std::vector<std::vector<std::int64_t>> each;
  const auto share = static_cast<std::ptrdiff_t>(all.size() / ranks);
  for (auto at = all.begin(); at != all.end(); at += share) each.emplace_back(at, at + share);
  return each;
}

/// Prints the line of the k-th rate.
void train_at(Batches run, std::size_t k, const Task& task,
              const std::vector<std::vector<std::int64_t>>& from) {
  const double highest = run.rates[k],
               done = static_cast<double>(k + 1) / static_cast<double>(run.rates.size());
  set_rate(run.options, highest);
  const train::Method& method = train::method(run.method);
  const train::Stages stages{.freeze = std::max<std::uint64_t>(1, run.steps() * 15 / 100)};
  const terse::Layout layout = Model::layout();
  terse::ThreadGroup(run.options.ranks, train::deadline_of(run.options)).run([&](terse::Threads& threads) {
    const int rank = threads.rank();
    terse::Threads side = threads.split(0, rank);
    train::OnHost place{terse::Metered(terse::AnyTransport(threads.split(0, rank))), {}};
    const train::Made optimizer = method.made.on_host({method, run.options, stages, layout, place});
    Model model;
    std::vector<float> x = Model::start(run.options.seed), g(x.size());
    Batch batch(static_cast<std::size_t>(run.options.batch / run.options.ranks));
    double loss = 0;
    for (std::uint64_t step = 0; step < run.steps(); ++step) {
      const float rate = run.rate_at(step, highest);
      optimizer->begin(x.data(), rate);
      draw_batch(from[static_cast<std::size_t>(rank)], run.options.seed, rank, step, batch);
      loss = model.gradient(x, task.training, batch, g);
      optimizer->step(x.data(), g.data(), rate);
    }
    std::vector<float> mean = x;
    terse::mean(side, mean);
    double apart = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      apart += std::pow(static_cast<double>(x[i] - mean[i]), 2);
      size += std::pow(static_cast<double>(mean[i]), 2);
    }
    apart = std::sqrt(terse::mean(side, apart) / size);
    loss = terse::mean(side, loss);
    if (rank != 0) return;
    const experiments::Score validation = model.score(mean, task.validation, task.validation.count),
                             test = model.score(mean, task.test, task.test.count);
    fmt::print(
        R"({{"rate": {}, "done": {:.4g}, "steps": {}, "train": {}, "validation": {}, "test": {}, "loss": {}, "apart": {}}})"
        "\n",
        highest, done, run.steps(), number(loss), number(validation.accuracy), number(test.accuracy),
        number(test.loss), number(apart));
    std::fflush(stdout);
  });
}

void train_all(const Batches& run) {
  const Task task = load(run.options.data);
  const auto from = shares(run, task.training);
  for (std::size_t k = 0; k < run.rates.size(); ++k) unless_diverged([&] { train_at(run, k, task, from); });
}

}  // namespace

int main(int argc, char** argv) {
  Batches run;
  train::Options& options = run.options;
  options.ranks = 8;
  options.batch = 256;
  CLI::App app{"Trains a perceptron by threads, and prints a line of JSON."};
  app.option_defaults()->always_capture_default();
  std::string schedule = "cosine", graph = "ring";
  double skew = 0;
  bool bias_correction = false;
  app.add_option("--method", run.method, "of the trainer, such as decentlam")->required();
  app.add_option("--rates", run.rates, "the highest learning rates")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--examples", run.examples, "in all steps")->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch, "of all ranks in a step")->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--seed", options.seed);
  app.add_option("--schedule", schedule)->check(CLI::IsMember({"cosine", "constant"}));
  app.add_option("--graph", graph)->check(CLI::IsMember({"ring", "exponential"}));
  app.add_option("--skew", skew, "of labels between ranks, the Dirichlet distribution's parameter; 0: none");
  app.add_flag("--bias-correction", bias_correction, "of 1-bit LAMB's first stage");
  app.add_option("--data", options.data);
  CLI11_PARSE(app, argc, argv);
  if (schedule == "constant") options.rate_schedule = train::RateSchedule::constant;
  if (bias_correction) options.bias_correction = train::BiasCorrection::first_stage;
  options.graph = graph == "ring" ? train::Graph::ring : train::Graph::symmetric_exponential;
  if (skew > 0) options.label_skew = skew;
  return exit_status("batches", [&] {
    if (options.batch % options.ranks != 0)
      throw std::invalid_argument("--batch must be a multiple of --ranks: each rank takes as many examples");
    train_all(run);
  });
}
