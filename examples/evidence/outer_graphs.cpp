// SPDX-License-Identifier: Apache-2.0

// One row of `outer-graphs`: trains the perceptron by threads with DiLoCo over all ranks or over a graph, at several inner learning
// rates. Prints a line of JSON for each rate: scores of the ranks' mean model, and the distance between ranks.

#include <CLI/CLI.hpp>
#include <numeric>

#include "../../tools/train/label_skew.hpp"
#include "perceptron.hpp"
#include "terse/graph/graphs.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/topology/mixing.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/metered.hpp"

namespace {

using namespace perceptron;

struct Run {
  std::string graph = "all", data = "/usr/share/datasets/fashion-mnist";
  std::vector<double> rates{1e-3};
  int ranks = 8;
  std::size_t batch = 32;
  std::uint64_t steps = 500, period = 10, seed = 1;
  double skew = 0;
};

using Shares = std::vector<std::vector<std::int64_t>>;

/// Returns each rank's training images.
Shares shares(const Run& run, const Dataset& training) {
  const auto ranks = static_cast<std::size_t>(run.ranks);
  std::vector<std::int64_t> all(static_cast<std::size_t>(training.count));
  std::iota(all.begin(), all.end(), 0);
  if (run.skew <= 0) return Shares(ranks, all);
  all = train::deal_skewed(training.labels, run.ranks, run.skew, run.seed);
  Shares each;
  const auto share = static_cast<std::ptrdiff_t>(all.size() / ranks);
  for (auto at = all.begin(); at != all.end(); at += share) each.emplace_back(at, at + share);
  return each;
}

/// Prints the line of the k-th rate.
template <class... Topology>
void train_at(const Run& run, std::size_t k, const Task& task, const Shares& from) {
  terse::DiLoCo<terse::Adam<>, Topology...> recipe{.period = run.period};
  recipe.inner.learning_rate = static_cast<float>(run.rates[k]);
  terse::ThreadGroup(run.ranks, std::chrono::seconds(120)).run([&](terse::Threads& threads) {
    const int rank = threads.rank();
    terse::Metered<terse::Threads> network(threads.split(0, rank));
    terse::Optimizer optimizer{recipe, network, Model::layout()};
    Model model;
    std::vector<float> x = Model::start(run.seed), g(x.size());
    Batch batch(run.batch);
    for (std::uint64_t step = 0; step < run.steps; ++step) {
      draw_batch(from[static_cast<std::size_t>(rank)], run.seed, rank, step, batch);
      model.gradient(x, task.training, batch, g);
      optimizer.step(x, g);
    }
    const std::uint64_t bytes = network.traffic().bytes_sent();
    std::vector<float> mean = x;
    terse::mean(threads, mean);
    double apart = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      apart += std::pow(static_cast<double>(x[i] - mean[i]), 2);
      size += std::pow(static_cast<double>(mean[i]), 2);
    }
    apart = std::sqrt(terse::mean(threads, apart) / size);
    if (rank != 0) return;
    const experiments::Score validation = model.score(mean, task.validation, task.validation.count),
                             test = model.score(mean, task.test, task.test.count);
    fmt::print(
        R"({{"rate": {}, "done": {:.4g}, "validation": {}, "test": {}, "loss": {}, "apart": {}, "bytes": {}}})"
        "\n",
        run.rates[k], static_cast<double>(k + 1) / static_cast<double>(run.rates.size()),
        number(validation.accuracy), number(test.accuracy), number(test.loss), number(apart), bytes);
    std::fflush(stdout);
  });
}

void train_all(const Run& run) {
  const Task task = load(run.data);
  const Shares from = shares(run, task.training);
  for (std::size_t k = 0; k < run.rates.size(); ++k)
    unless_diverged([&] {
      if (run.graph == "all")
        train_at<>(run, k, task, from);
      else if (run.graph == "complete")
        train_at<terse::Mixing<terse::graph::Complete>>(run, k, task, from);
      else if (run.graph == "exponential")
        train_at<terse::Gossip>(run, k, task, from);
      else
        train_at<terse::Mixing<terse::graph::Ring>>(run, k, task, from);
    });
}

}  // namespace

int main(int argc, char** argv) {
  Run run;
  CLI::App app{"Trains a perceptron by threads with DiLoCo, and prints lines of JSON."};
  app.option_defaults()->always_capture_default();
  app.add_option("--graph", run.graph, "neighbours whose anchors are mixed; all: a mean over all ranks")
      ->check(CLI::IsMember({"all", "complete", "exponential", "ring"}));
  app.add_option("--rates", run.rates, "the inner learning rates")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", run.steps)->check(CLI::PositiveNumber);
  app.add_option("--period", run.period, "local steps between meetings")->check(CLI::PositiveNumber);
  app.add_option("--batch", run.batch, "of a rank")->check(CLI::PositiveNumber);
  app.add_option("--ranks", run.ranks)->check(CLI::Range(1, 64));
  app.add_option("--seed", run.seed);
  app.add_option("--skew", run.skew,
                 "of labels between ranks, the Dirichlet distribution's parameter; 0: none");
  app.add_option("--data", run.data);
  CLI11_PARSE(app, argc, argv);
  return exit_status("outer_graphs", [&] { train_all(run); });
}
