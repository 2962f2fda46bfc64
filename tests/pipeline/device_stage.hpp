// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "terse/pipeline/pipeline.hpp"

// A stage of a small model whose arrays lie in an executor's memory: the same bits on all executors. It waits for nothing
// but, on the last stage, the loss.

namespace terse::test {

/// The example that gives a NaN on stage `at_stage`, if there is one, or an infinite gradient.
struct Spoiled {
  std::uint64_t id = no_example;
  int at_stage = -1;
  bool backward = false;
};

TERSE_NUMERICS_BEGIN

/// What an example is, and what the model shall make of it, in [-1, 1).
TERSE_HD inline float example(std::uint64_t id, index_t i, std::uint64_t what) {
  std::uint64_t bits = (id * 131 + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15 + what;
  bits ^= bits >> 29;
  return static_cast<float>(bits * 0xBF58476D1CE4E5B9 >> 40) * 0x1p-23F - 1.0F;
}

/// z = x (1 + w) + w' / 4, w' the next element's; y = z / (1 + z^2).
template <Number A>
struct ToyBlock {
  const A* input;  // none: the examples themselves
  const std::uint64_t* ids;
  const float* weights;
  index_t elements;
  std::uint64_t spoiled;

  TERSE_HD float x(index_t k) const {
    return input != nullptr ? widened(input[k]) : example(ids[k / elements], k % elements, 0);
  }
  TERSE_HD float z(index_t k) const {
    return x(k) * (1.0F + weights[k % elements]) + 0.25F * weights[(k + 1) % elements];
  }
  TERSE_HD float y(index_t k) const {
    const float z_ = z(k), y_ = z_ / (1.0F + z_ * z_);
    return ids[k / elements] == spoiled ? std::numeric_limits<float>::quiet_NaN() : y_;
  }
};

template <Number A>
struct ToyForward {
  ToyBlock<A> block;
  A* output;
  TERSE_HD void operator()(index_t k) const { output[k] = narrowed<A>(block.y(k)); }
};

/// The last stage's: half the squared distance from what it shall be, by one thread.
template <Number A>
struct ToyLoss {
  ToyBlock<A> block;
  index_t count;
  double weight;
  double* loss;
  TERSE_HD void operator()(index_t) const {
    double sum = 0;
    for (index_t k = 0; k < count; ++k) {
      const auto apart =
          static_cast<double>(block.y(k) - example(block.ids[k / block.elements], k % block.elements, 1));
      sum += 0.5 * apart * apart;
    }
    *loss = sum * weight;
  }
};

template <Number A>
struct ToyBackward {
  ToyBlock<A> block;
  const A* output_gradient;  // none: that of the loss
  float weight;
  std::uint64_t spoiled;
  float* dz;
  A* input_gradient;
  TERSE_HD void operator()(index_t k) const {
    const std::uint64_t id = block.ids[k / block.elements];
    const float z = block.z(k), one = 1.0F + z * z;
    const float dy = output_gradient != nullptr ? widened(output_gradient[k])
                                                : (block.y(k) - example(id, k % block.elements, 1)) * weight;
    const float d = dy * (1.0F - z * z) / (one * one);
    dz[k] = d;
    const float dx = d * (1.0F + block.weights[k % block.elements]);
    input_gradient[k] = narrowed<A>(id == spoiled ? std::numeric_limits<float>::infinity() : dx);
  }
};

/// A weight's gradient, over the rows in their order.
template <Number A>
struct ToyGradient {
  ToyBlock<A> block;
  index_t rows;
  const float* dz;
  float* gradients;
  TERSE_HD void operator()(index_t i) const {
    const index_t before = (i + block.elements - 1) % block.elements;
    float sum = gradients[i];
    for (index_t row = 0; row < rows; ++row) {
      const index_t k = row * block.elements;
      sum += dz[k + i] * block.x(k + i);
      sum += 0.25F * dz[k + before];
    }
    gradients[i] = sum;
  }
};

/// One step of gradient descent.
struct ToyDescent {
  float rate;
  float *weights, *gradients;
  TERSE_HD void operator()(index_t i) const {
    weights[i] -= rate * gradients[i];
    gradients[i] = 0;
  }
};

TERSE_NUMERICS_END

template <Executor E, Number A = float>
class Toy {
 public:
  Toy(E executor, int rank, int stages, index_t elements, index_t micro_batch, const Spoiled& spoiled = {})
      : executor_(executor),
        first_(rank == 0),
        last_(rank + 1 == stages),
        elements_(elements),
        forward_spoiled_(rank == spoiled.at_stage && !spoiled.backward ? spoiled.id : no_example - 1),
        backward_spoiled_(rank == spoiled.at_stage && spoiled.backward ? spoiled.id : no_example - 1),
        weights_(elements),
        gradients_(elements),
        dz_(micro_batch * elements),
        output_(micro_batch * elements),
        input_gradient_(micro_batch * elements),
        ids_(micro_batch),
        loss_(1) {
    std::vector<float> start;
    for (index_t i = 0; i < elements; ++i)
      start.push_back(0.5F * example(static_cast<std::uint64_t>(rank), i, 2));
    upload(view<const float>(start), weights_.all());
  }

  index_t input_elements() const { return first_ ? 0 : elements_; }
  index_t output_elements() const { return last_ ? 0 : elements_; }

  const A* forward(const MicroBatch& batch, const A* input) {
    inputs_.resize(std::max(inputs_.size(), static_cast<std::size_t>(batch.index) + 1));
    inputs_[static_cast<std::size_t>(batch.index)] = input;
    if (last_)
      for_each_entry(executor_, 1,
                     ToyLoss<A>{block(batch), batch.rows * elements_,
                                batch.weight / static_cast<double>(batch.rows), loss_.data()});
    else
      for_each_entry(executor_, batch.rows * elements_, ToyForward<A>{block(batch), output_.data()});
    return last_ ? nullptr : output_.data();
  }
  const A* backward(const MicroBatch& batch, const A* output_gradient) {
    const auto weight = static_cast<float>(batch.weight / static_cast<double>(batch.rows));
    for_each_entry(executor_, batch.rows * elements_,
                   ToyBackward<A>{block(batch), output_gradient, weight, backward_spoiled_, dz_.data(),
                                  input_gradient_.data()});
    for_each_entry(executor_, elements_,
                   ToyGradient<A>{block(batch), batch.rows, dz_.data(), gradients_.data()});
    return first_ ? nullptr : input_gradient_.data();
  }
  double loss(const MicroBatch&) {
    double loss = 0;
    fetch(executor_, in<E, double>(loss_.all()), view<double>(&loss, 1));
    return loss;
  }

  void descend(float rate) {
    for_each_entry(executor_, elements_, ToyDescent{rate, weights_.data(), gradients_.data()});
  }
  std::vector<float> weights() {
    std::vector<float> here(static_cast<std::size_t>(elements_));
    fetch(executor_, in<E>(weights_.all()), view<float>(here));
    return here;
  }

 private:
  ToyBlock<A> block(const MicroBatch& batch) {
    put(executor_, view<const std::uint64_t>(batch.ids, batch.rows), ids_.all());
    return {inputs_[static_cast<std::size_t>(batch.index)], ids_.data(), weights_.data(), elements_,
            forward_spoiled_};
  }

  E executor_;
  bool first_, last_;
  index_t elements_;
  std::uint64_t forward_spoiled_, backward_spoiled_;
  buffer<float, typename E::memory> weights_, gradients_, dz_;
  buffer<A, typename E::memory> output_, input_gradient_;
  buffer<std::uint64_t, typename E::memory> ids_;
  buffer<double, typename E::memory> loss_;
  std::vector<const A*> inputs_;  // by micro-batch
};

}  // namespace terse::test
