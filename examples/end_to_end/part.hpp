// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "task.hpp"
#include "terse/core/layout.hpp"
#include "terse/pipeline/micro_batch.hpp"

namespace end_to_end {

inline constexpr terse::index_t width = 128;
static_assert(width % 16 == 0 && classes % 16 == 0, "kernels take sixteen outputs at a time");

namespace detail {

// Sixteen at a time, which compilers turn into vector instructions.
inline void add_scaled(terse::index_t n, float a, const float* __restrict__ x, float* __restrict__ y) {
  for (terse::index_t i = 0; i < n; i += 16)
    for (terse::index_t k = 0; k < 16; ++k) y[i + k] += a * x[i + k];
}
inline float dot(terse::index_t n, const float* __restrict__ x, const float* __restrict__ y) {
  float sums[16] = {};
  for (terse::index_t i = 0; i < n; i += 16)
    for (terse::index_t k = 0; k < 16; ++k) sums[k] += x[i + k] * y[i + k];
  float sum = 0;
  for (const float one : sums) sum += one;
  return sum;
}

}  // namespace detail

/// A part of a network of fully connected layers with ReLU: a terse::Stage with kernels of its own. The first stage
/// reads the task's inputs, the last one has a second layer, to the classes, and the cross-entropy behind it.
class Part {
 public:
  /// How long passes are made to take, as if the stage were larger and had a device of its own. 0: as they take.
  std::chrono::duration<double> forward_time{0}, backward_time{0};

  Part(int stage, bool last, const Task& task, std::uint64_t seed)
      : first_(stage == 0), last_(last), task_(task) {
    layers_.push_back({first_ ? features : width, width, true});
    if (last_) layers_.push_back({width, classes, false});
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const std::string name = "stage" + std::to_string(stage) + ".layer" + std::to_string(k);
      layout_.add({name + ".weight", {layers_[k].in, layers_[k].out}})
          .add({name + ".bias", {layers_[k].out}});
    }
    parameters_.resize(static_cast<std::size_t>(layout_.size()));
    gradients_.resize(parameters_.size());
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const Layer& layer = layers_[k];
      const float scale = std::sqrt(6.0F / static_cast<float>(layer.in));
      const auto which = static_cast<std::uint64_t>(2 * stage) + k;
      for (terse::index_t i = 0; i < layer.in * layer.out; ++i)
        weight(parameters_, k)[i] = scale * uniform(seed ^ 0x5EED, which, i);
    }
  }

  const terse::Layout& layout() const { return layout_; }
  std::vector<float>& parameters() { return parameters_; }
  std::vector<float>& gradients() { return gradients_; }
  void zero_gradients() { std::fill(gradients_.begin(), gradients_.end(), 0.0F); }
  /// Sum of the gradients' squares.
  double square() const {
    double sum = 0;
    for (const float g : gradients_) sum += static_cast<double>(g) * static_cast<double>(g);
    return sum;
  }

  // What terse::Pipeline asks for.

  terse::index_t input_elements() const { return first_ ? 0 : width; }
  terse::index_t output_elements() const { return last_ ? 0 : width; }

  const float* forward(const terse::MicroBatch& batch, const float* input) {
    const Clock::time_point begin = Clock::now();
    std::vector<std::vector<float>>& values = in_flight(batch);
    for (terse::index_t r = 0; r < batch.rows; ++r) {
      const float* const from = first_ ? task_.input(batch.ids[r]) : input + r * width;
      std::copy_n(from, layers_[0].in, values[0].data() + r * layers_[0].in);
    }
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const Layer& layer = layers_[k];
      for (terse::index_t r = 0; r < batch.rows; ++r) {
        const float* const x = values[k].data() + r * layer.in;
        float* const y = values[k + 1].data() + r * layer.out;
        std::copy_n(bias(parameters_, k), layer.out, y);
        for (terse::index_t i = 0; i < layer.in; ++i)
          detail::add_scaled(layer.out, x[i], weight(parameters_, k) + i * layer.out, y);
        if (layer.relu)
          for (terse::index_t o = 0; o < layer.out; ++o) y[o] = std::max(y[o], 0.0F);
      }
    }
    if (last_) take_loss(batch, values.back());
    if (batch.training) std::this_thread::sleep_until(begin + duration(forward_time));
    return last_ ? nullptr : values.back().data();
  }

  const float* backward(const terse::MicroBatch& batch, const float* output_gradient) {
    const Clock::time_point begin = Clock::now();
    std::vector<std::vector<float>>& values = in_flight(batch);
    std::vector<float>& top = values.back();
    if (last_) {
      // From probabilities, which the forward pass left.
      const auto weight_of_row = static_cast<float>(batch.weight / static_cast<double>(batch.rows));
      for (terse::index_t r = 0; r < batch.rows; ++r)
        for (int c = 0; c < classes; ++c)
          top[static_cast<std::size_t>(r * classes + c)] =
              weight_of_row * (top[static_cast<std::size_t>(r * classes + c)] -
                               (c == task_.label(batch.ids[r]) ? 1.0F : 0.0F));
    } else {
      for (std::size_t i = 0; i < top.size(); ++i) top[i] = top[i] > 0 ? output_gradient[i] : 0.0F;
    }
    for (std::size_t k = layers_.size(); k-- > 0;) {
      const Layer& layer = layers_[k];
      for (terse::index_t r = 0; r < batch.rows; ++r) {
        const float* const dy = values[k + 1].data() + r * layer.out;
        // Its gradient takes an input's place.
        float* const x = values[k].data() + r * layer.in;
        detail::add_scaled(layer.out, 1, dy, bias(gradients_, k));
        for (terse::index_t i = 0; i < layer.in; ++i) {
          detail::add_scaled(layer.out, x[i], dy, weight(gradients_, k) + i * layer.out);
          const bool passes = k == 0 || x[i] > 0;
          x[i] = passes ? detail::dot(layer.out, weight(parameters_, k) + i * layer.out, dy) : 0.0F;
        }
      }
    }
    std::this_thread::sleep_until(begin + duration(backward_time));
    return first_ ? nullptr : values.front().data();
  }

  double loss(const terse::MicroBatch&) const { return loss_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Layer {
    terse::index_t in, out;
    bool relu;
  };

  static Clock::duration duration(std::chrono::duration<double> seconds) {
    return std::chrono::duration_cast<Clock::duration>(seconds);
  }
  float* weight(std::vector<float>& arena, std::size_t layer) const {
    return arena.data() + layout_.segments()[2 * layer].offset;
  }
  float* bias(std::vector<float>& arena, std::size_t layer) const {
    return arena.data() + layout_.segments()[2 * layer + 1].offset;
  }
  /// The micro-batch's input and the outputs of all layers.
  std::vector<std::vector<float>>& in_flight(const terse::MicroBatch& batch) {
    const auto index = static_cast<std::size_t>(batch.index);
    if (values_.size() <= index) values_.resize(index + 1);
    std::vector<std::vector<float>>& values = values_[index];
    values.resize(layers_.size() + 1);
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k].resize(static_cast<std::size_t>(batch.rows * (k == 0 ? layers_[0].in : layers_[k - 1].out)));
    return values;
  }
  /// Turns scores into probabilities.
  void take_loss(const terse::MicroBatch& batch, std::vector<float>& scores) {
    double sum = 0;
    for (terse::index_t r = 0; r < batch.rows; ++r) {
      float* const score = scores.data() + r * classes;
      const float most = *std::max_element(score, score + classes);
      float all = 0;
      for (int c = 0; c < classes; ++c) all += score[c] = std::exp(score[c] - most);
      for (int c = 0; c < classes; ++c) score[c] /= all;
      sum -= std::log(std::max(static_cast<double>(score[task_.label(batch.ids[r])]), 1e-30));
    }
    loss_ = sum / static_cast<double>(batch.rows) * batch.weight;
  }

  bool first_, last_;
  const Task& task_;
  std::vector<Layer> layers_;
  terse::Layout layout_;
  std::vector<float> parameters_, gradients_;
  std::vector<std::vector<std::vector<float>>> values_;  // by micro-batch in flight
  double loss_ = 0;
};

}  // namespace end_to_end
