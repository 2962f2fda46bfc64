// SPDX-License-Identifier: Apache-2.0

#include <chrono>
#include <cmath>
#include <vector>

#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/pipeline/ac_sgd.hpp"
#include "terse/pipeline/activations.hpp"
#include "terse/pipeline/example_order.hpp"
#include "terse/pipeline/pipeline.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"
#include "theory.hpp"

// The model: f(W, v) = mean over examples of log(1 + exp(-v . tanh(W z))) + ridge (|W|^2 + |v|^2) / 2, z features times
// label. The first stage has W, the second one v.

namespace theory {
namespace {

constexpr std::size_t hidden = 16;
constexpr terse::index_t batch = 32;
constexpr double ridge = 0.1;

using Forward = terse::Uniform<2, terse::Nearest, terse::Asymmetric, terse::MaxAbs, terse::PerSegment>;
using Backward = terse::Uniform<4, terse::Stochastic, terse::Symmetric, terse::MaxAbs, terse::PerSegment>;

std::size_t size_of(const terse::MicroBatch& rows) { return static_cast<std::size_t>(rows.rows); }

/// Parameters and gradients of a stage in an optimizer's arena.
class Stage {
 public:
  Stage(const Problem& problem, bool first, std::uint64_t seed) : problem_(problem), first_(first) {
    layout_.add({"weights", {static_cast<terse::index_t>(first ? hidden * dimension : hidden)}});
    parameters.resize(static_cast<std::size_t>(layout_.size()));
    gradients.resize(parameters.size());
    Normal normal(terse::Draw::local(seed, first ? 0 : 1, 0, terse::Purpose::user));
    for (std::size_t k = 0; k < used(); ++k) parameters[k] = static_cast<float>(0.3 * normal());
  }

  std::size_t used() const { return first_ ? hidden * dimension : hidden; }
  const terse::Layout& layout() const { return layout_; }

  terse::index_t input_elements() const { return first_ ? 0 : hidden; }
  terse::index_t output_elements() const { return first_ ? hidden : 0; }
  const float* forward(const terse::MicroBatch& rows, const float* input) {
    values_.resize(size_of(rows) * hidden);
    if (!first_) {
      std::copy_n(input, values_.size(), values_.begin());
      return nullptr;
    }
    for (std::size_t r = 0; r < size_of(rows); ++r)
      for (std::size_t j = 0; j < hidden; ++j)
        values_[r * hidden + j] = std::tanh(product(parameters.data(), problem_.examples()[rows.ids[r]], j));
    return values_.data();
  }
  const float* backward(const terse::MicroBatch& rows, const float* output_gradient) {
    const auto share = static_cast<float>(rows.weight / static_cast<double>(rows.rows));
    if (first_) {
      for (std::size_t r = 0; r < size_of(rows); ++r)
        for (std::size_t j = 0; j < hidden; ++j) {
          const float h = values_[r * hidden + j], slope = output_gradient[r * hidden + j] * (1 - h * h);
          for (std::size_t k = 0; k < dimension; ++k)
            gradients[j * dimension + k] += slope * static_cast<float>(problem_.examples()[rows.ids[r]][k]);
        }
      return nullptr;
    }
    for (std::size_t r = 0; r < size_of(rows); ++r) {
      const float slope = -share / (1 + std::exp(margin(r)));
      for (std::size_t j = 0; j < hidden; ++j) {
        float& h = values_[r * hidden + j];
        gradients[j] += slope * h;
        h = slope * parameters[j];
      }
    }
    return values_.data();
  }
  double loss(const terse::MicroBatch& rows) {
    double sum = 0;
    for (std::size_t r = 0; r < size_of(rows); ++r)
      sum += std::log1p(std::exp(-static_cast<double>(margin(r))));
    return rows.weight * sum / static_cast<double>(rows.rows);
  }

  /// Adds the ridge's slope, and the noise of a step.
  void finish_gradient(std::uint64_t seed, std::uint64_t step) {
    Normal normal(terse::Draw::local(seed, first_ ? 0 : 1, step + 1, terse::Purpose::user));
    const double deviation = 1 / std::sqrt(static_cast<double>(hidden * (dimension + 1)));
    for (std::size_t k = 0; k < used(); ++k)
      gradients[k] += static_cast<float>(ridge * static_cast<double>(parameters[k]) + deviation * normal());
  }

  static float product(const float* weights, const Vector& features, std::size_t row) {
    float sum = 0;
    for (std::size_t k = 0; k < dimension; ++k)
      sum += weights[row * dimension + k] * static_cast<float>(features[k]);
    return sum;
  }

  std::vector<float> parameters, gradients;

 private:
  float margin(std::size_t r) const {
    float sum = 0;
    for (std::size_t j = 0; j < hidden; ++j) sum += parameters[j] * values_[r * hidden + j];
    return sum;
  }

  const Problem& problem_;
  bool first_;
  terse::Layout layout_;
  std::vector<float> values_;  // outputs of the first stage, or inputs of the second; then their gradients
};

/// Returns |grad f|^2 of both stages' parameters, in double.
double square_norm(const Problem& problem, const std::vector<float>& weights,
                   const std::vector<float>& last) {
  std::vector<double> of_weights(hidden * dimension), of_last(hidden);
  for (const Vector& example : problem.examples()) {
    std::array<double, hidden> h;
    double margin = 0;
    for (std::size_t j = 0; j < hidden; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < dimension; ++k)
        sum += static_cast<double>(weights[j * dimension + k]) * example[k];
      h[j] = std::tanh(sum);
      margin += static_cast<double>(last[j]) * h[j];
    }
    const double slope = -1 / (1 + std::exp(margin)) / (blocks * block);
    for (std::size_t j = 0; j < hidden; ++j) {
      of_last[j] += slope * h[j];
      const double below = slope * static_cast<double>(last[j]) * (1 - h[j] * h[j]);
      for (std::size_t k = 0; k < dimension; ++k) of_weights[j * dimension + k] += below * example[k];
    }
  }
  double sum = 0;
  for (std::size_t k = 0; k < of_weights.size(); ++k)
    sum += std::pow(of_weights[k] + ridge * static_cast<double>(weights[k]), 2);
  for (std::size_t k = 0; k < of_last.size(); ++k)
    sum += std::pow(of_last[k] + ridge * static_cast<double>(last[k]), 2);
  return sum;
}

template <class Activations>
double mean_square_norm(const Activations& activations, const Problem& problem, const Point& point) {
  const std::uint64_t stride = std::max<std::uint64_t>(1, point.steps / 2048), seed = problem.seed();
  double sum = 0;
  std::uint64_t terms = 0;
  const std::vector<float>* of_first = nullptr;
  const auto rate = static_cast<float>(point.rate / std::sqrt(static_cast<double>(point.steps)));
  terse::ThreadGroup(2, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
    const bool first = transport.rank() == 0;
    Stage stage(problem, first, seed);
    if (first) of_first = &stage.parameters;
    terse::Threads alone = transport.split(transport.rank(), 0), side = transport.split(0, transport.rank());
    terse::Pipeline pipeline{activations, transport, stage, {.micro_batch = batch, .seed = seed}};
    const terse::MomentumSgd<> sgd{.learning_rate = rate, .momentum_correction = {.momentum = 0}};
    terse::Optimizer optimizer{sgd, alone, stage.layout()};
    for (std::uint64_t step = 0; step < point.steps; ++step) {
      const auto per_epoch = static_cast<std::uint64_t>(blocks * block / batch);
      const terse::ExampleOrder order(blocks * block, seed, step / per_epoch);
      if (step % stride == 0) {
        terse::barrier(side);
        if (!first) {
          sum += square_norm(problem, *of_first, stage.parameters);
          ++terms;
        }
        terse::barrier(side);
      }
      std::fill(stage.gradients.begin(), stage.gradients.end(), 0.0F);
      pipeline.train(order.batch(static_cast<terse::index_t>(step % per_epoch), batch));
      stage.finish_gradient(seed, step);
      optimizer.step(stage.parameters, stage.gradients);
    }
  });
  return sum / static_cast<double>(terms);
}

}  // namespace

double ac_sgd(const Problem& problem, const Point& point) {
  return mean_square_norm(terse::AcSgd<Forward, Backward>{.capacity = blocks * block}, problem, point);
}
double direct_quantization(const Problem& problem, const Point& point) {
  return mean_square_norm(terse::DirectActivations<Forward, Backward>{}, problem, point);
}

}  // namespace theory
