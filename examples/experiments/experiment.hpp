// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/delayed.hpp"

namespace experiments {

/// An optimizer on one rank, of whatever recipe.
class AnyOptimizer {
 public:
  virtual ~AnyOptimizer() = default;
  /// Steps at a share of the recipe's learning rate; the bytes that this rank has sent.
  virtual std::uint64_t step(std::vector<float>& x, const std::vector<float>& g, float share) = 0;
};
using Maker = std::function<std::unique_ptr<AnyOptimizer>(terse::AnyTransport&, std::uint64_t seed)>;

template <class Recipe>
class TheOptimizer final : public AnyOptimizer {
 public:
  TheOptimizer(const Recipe& recipe, terse::AnyTransport& transport, const terse::Layout& layout,
               std::uint64_t seed)
      : optimizer_(recipe, transport, layout, {.seed = seed}), rate_(optimizer_.learning_rate()) {}
  std::uint64_t step(std::vector<float>& x, const std::vector<float>& g, float share) override {
    optimizer_.learning_rate(share * rate_);
    return optimizer_.step(x, g).bytes_sent;
  }

 private:
  terse::Optimizer<Recipe, terse::AnyTransport> optimizer_;
  const float rate_;
};

template <class Recipe>
Maker maker(const Recipe& recipe, const terse::Layout& layout = Model::layout()) {
  return [recipe, layout](terse::AnyTransport& transport, std::uint64_t seed) {
    return std::make_unique<TheOptimizer<Recipe>>(recipe, transport, layout, seed);
  };
}

/// How long, on how much, and over what. The rate rises over 20 steps and falls by a cosine to a tenth.
struct Training {
  std::uint64_t steps = 480;
  int ranks = 4;
  int batch = 32;                        ///< pictures of each rank
  std::optional<terse::Link> link = {};  ///< of each rank; none: nothing but threads
  std::chrono::milliseconds pace{0};     ///< the least time that a gradient takes
  int width = Model::usual_width;        ///< of the hidden layers
};

/// What a row has to show.
struct Figures {
  double loss = 0;           ///< of the steps' own batches: mean over ranks and over the last 60 steps
  double accuracy = 0;       ///< of the mean of the ranks' parameters, on 5000 test pictures
  double bytes = 0;          ///< that a rank sends for a step, mean
  double burst = 0;          ///< the most that it sends for one
  double spread = 0;         ///< root mean square over ranks of their distance from their mean
  double spread_before = 0;  ///< the same after three quarters of the steps
  double dead = 0;           ///< how far the weights of a pixel that is always 0 have moved, at most
  double stall = 0;          ///< ms a step beyond its pace, mean
  double bias = 0;           ///< of a mean that travelled, over its root mean square
  double noise = 0;          ///< what the bias is known to
};

struct Task {
  Dataset training, test;  ///< the first pixel of each picture should be 0: its weights are the dead ones
};

Figures run(const Task& task, const Training& training, const Maker& make, std::uint64_t seed);

struct Column {
  const char* title;
  int digits;  ///< behind the point
  double Figures::*value;
};
inline const std::vector<Column> usual{
    {"loss", 3, &Figures::loss}, {"accuracy", 3, &Figures::accuracy}, {"bytes a step", 0, &Figures::bytes}};

struct Row {
  std::string name;
  std::function<Figures(const Task&, std::uint64_t seed)> measure;
};

/// Rows under a name, in a unit of their own each.
struct Experiment {
  std::string name;
  std::vector<Column> columns = usual;
  std::vector<Row> rows = {};

  void add(std::string row, const Maker& make, const Training& training = {}) {
    rows.push_back({std::move(row), [make, training](const Task& task, std::uint64_t seed) {
                      return run(task, training, make, seed);
                    }});
  }
};

/// Those that this program was linked with, in order.
std::vector<Experiment> all_experiments();

}  // namespace experiments
