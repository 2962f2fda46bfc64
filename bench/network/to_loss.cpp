// SPDX-License-Identifier: Apache-2.0
// One rank of bench/network/to_loss: trains over MPI until the training loss is low enough.
//
//   bench_to_loss METHOD MODEL BATCH DENSE_STEPS LEARNING_RATE LOSS MOST_STEPS DATA
//
// DATA is the folder of Fashion-MNIST's IDX files, or, for a transformer, a file of examples of 65 bytes: characters, each of which
// but the last is an input, and but the first a target.
//
// The loss is that of the steps' own batches, before the step: the mean over ranks and over the last 64 steps. Rank 0 prints one
// line of JSON: for each step from the 64th on the seconds that steps have taken until then, the loss, and the bytes that a rank
// has sent. Seconds are the slowest rank's, from a barrier on; taking the next batch, which a loader does beside the step, and
// asking for the others' loss are left out. Parameters at the beginning and batches are those of ddp.py, alike for all methods.

#include <algorithm>
#include <boost/mpi/collectives.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "methods.hpp"
#include "model.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/mpi.hpp"

namespace {

constexpr std::size_t smoothed_over = 64;

/// The order of examples: the same everywhere, another in each epoch.
class Order {
 public:
  explicit Order(std::int64_t count) : order_(static_cast<std::size_t>(count)) {
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
  }
  std::int64_t operator[](std::uint64_t number) {
    while (number / order_.size() >= epochs_) shuffle();
    return order_[number % order_.size()];
  }

 private:
  void shuffle() {
    for (std::size_t left = order_.size(); left > 1; --left)
      std::swap(order_[left - 1], order_[draw() % left]);
    ++epochs_;
  }
  /// SplitMix64.
  std::uint64_t draw() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

  std::vector<std::int64_t> order_;
  std::uint64_t epochs_ = 0, state_ = 0;
};

/// A mean over ranks' losses, and over the last steps.
class Smoothed {
 public:
  /// False as long as there are too few.
  bool add(double loss) {
    losses_.push_back(loss);
    return losses_.size() >= smoothed_over;
  }
  double mean() const {
    return std::accumulate(losses_.end() - smoothed_over, losses_.end(), 0.0) / smoothed_over;
  }

 private:
  std::vector<double> losses_;
};

struct Examples {
  std::vector<float> inputs;
  std::vector<std::int64_t> targets;
};
Examples load(const Model& model, const std::string& data) {
  Examples examples;
  if (model.targets() == 1) {
    train::Dataset pictures = train::load_images_labels(data, true);
    examples.inputs = std::move(pictures.images);
    examples.targets.assign(pictures.labels.begin(), pictures.labels.end());
    return examples;
  }
  std::ifstream file(data, std::ios::binary);
  std::string example(static_cast<std::size_t>(model.targets()) + 1, '\0');
  while (file.read(example.data(), static_cast<std::streamsize>(example.size()))) {
    examples.inputs.insert(examples.inputs.end(), example.begin(), example.end() - 1);
    examples.targets.insert(examples.targets.end(), example.begin() + 1, example.end());
  }
  if (examples.targets.empty()) throw terse::usage_error("there are no examples in " + data);
  return examples;
}

struct Arguments {
  std::string method, model;
  int batch;
  Settings settings;
  double loss;
  std::uint64_t most_steps;
  std::string data;
};

void train_to_loss(const Arguments& arguments, terse::Mpi& mpi) {
  using Clock = std::chrono::steady_clock;
  const boost::mpi::communicator world;
  const int rank = world.rank(), ranks = world.size();
  const auto model = make_model(arguments.model, arguments.batch, rank);
  const Examples data = load(*model, arguments.data);
  terse::Layout layout;
  Model::Offsets offsets;
  for (const auto& shape : model->shapes()) {
    layout.add({"parameter" + std::to_string(offsets.size()), shape});
    offsets.push_back(layout.segments().back().offset);
  }
  terse::AnyTransport transport(mpi.split(0, rank));
  const Method& how = method(arguments.method, rank);
  const auto optimizer = how.make(transport, layout, {.most_masked = 1}, arguments.settings);
  std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
  model->begin(x.data(), offsets);

  const auto batch = static_cast<std::size_t>(arguments.batch);
  const auto width = static_cast<std::size_t>(model->inputs()),
             answers = static_cast<std::size_t>(model->targets());
  std::vector<float> inputs(batch * width);
  std::vector<std::int64_t> targets(batch * answers);
  Order order(static_cast<std::int64_t>(data.targets.size() / answers));
  Smoothed smoothed;
  std::vector<double> all;
  double seconds = 0;
  std::uint64_t bytes = 0;
  std::string curve;
  for (std::uint64_t step = 0; step < arguments.most_steps; ++step) {
    const auto mine = step * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(rank);
    for (std::size_t k = 0; k < batch; ++k) {
      const auto which = static_cast<std::size_t>(order[mine * batch + k]);
      std::copy_n(&data.inputs[which * width], width, &inputs[k * width]);
      std::copy_n(&data.targets[which * answers], answers, &targets[k * answers]);
    }
    model->take(inputs.data(), targets.data());

    terse::barrier(transport);
    const auto begin = Clock::now();
    if (how.overlaps) optimizer->begin(x, g);
    const double loss = model->gradient(x.data(), g.data(), offsets, [&](std::int64_t segment) {
      if (how.overlaps) optimizer->ready(segment);
    });
    bytes += optimizer->step(x, g).bytes_sent;
    const double own = std::chrono::duration<double>(Clock::now() - begin).count();

    // All ranks add up the same numbers in the same order, and so end with the same step.
    boost::mpi::all_gather(world, own, all);
    seconds += *std::max_element(all.begin(), all.end());
    boost::mpi::all_gather(world, loss, all);
    if (!smoothed.add(std::accumulate(all.begin(), all.end(), 0.0) / ranks)) continue;
    curve += (curve.empty() ? "[" : ", [") + std::to_string(seconds) + ", " +
             std::to_string(smoothed.mean()) + ", " + std::to_string(bytes) + "]";
    if (smoothed.mean() > arguments.loss && step + 1 < arguments.most_steps) continue;
    if (rank == 0) std::printf("{\"method\": \"%s\", \"curve\": [%s]}\n", how.name.c_str(), curve.c_str());
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: bench_to_loss METHOD MODEL BATCH DENSE_STEPS LEARNING_RATE LOSS MOST_STEPS DATA\n");
    return 2;
  }
  const Arguments arguments{argv[1],
                            argv[2],
                            std::atoi(argv[3]),
                            {std::strtof(argv[5], nullptr), std::strtoull(argv[4], nullptr, 10)},
                            std::atof(argv[6]),
                            std::strtoull(argv[7], nullptr, 10),
                            argv[8]};
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& mpi) {
    if (!real_model)
      throw terse::usage_error("training needs a program that was built with LibTorch", mpi.rank());
    train_to_loss(arguments, mpi);
  });
}
