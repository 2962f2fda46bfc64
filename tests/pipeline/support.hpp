// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/pipeline/pipeline.hpp"
#include "terse/transport/thread.hpp"

// What the tests of pipelines share: stages with kernels of their own, a schedule that is chosen at run time, the same
// training by one rank, and a way to look at copies of examples.

namespace terse::test {

using Floats = std::vector<float>;
using Ids = std::vector<std::uint64_t>;

/// Uniform in [-1, 1), a function of its arguments alone.
inline float random_value(std::uint64_t stream, std::uint64_t id, std::uint64_t time, index_t i) {
  const std::uint64_t bits = mix_hash(mix_hash(mix_hash(stream, id), time), static_cast<std::uint64_t>(i));
  return static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F;
}
/// Standard normal, the same way.
inline float random_normal(std::uint64_t stream, std::uint64_t id, std::uint64_t time, index_t i) {
  const auto u = static_cast<double>(random_value(stream, id, time, 2 * i) + 1) / 2;
  const auto v = static_cast<double>(random_value(stream, id, time, 2 * i + 1));
  return static_cast<float>(std::sqrt(-2 * std::log(1 - u)) * std::cos(v * 3.14159265358979));
}

/// The numbers from 0 to count - 1, shuffled.
inline Ids shuffled(std::uint64_t count, std::uint64_t seed) {
  Ids ids(count);
  for (std::uint64_t k = 0; k < count; ++k) ids[k] = k;
  const Draw draw = Draw::shared(seed, 0, Purpose::shuffle);
  for (std::uint64_t k = count; k > 1; --k) std::swap(ids[k - 1], ids[draw.below(k, k)]);
  return ids;
}

/// Part of a multi-layer perceptron: layer by layer y = W x + c, then max(0, y) behind all layers but the model's last.
/// The loss is the mean over the batch's rows of ||y - target||^2 / 2. Weights, inputs and targets are functions of
/// layers, ids and elements, so that a model is the same however it is cut. Inputs are read where the pipeline keeps
/// them. Steps after the largest allocate nothing.
class Layers {
 public:
  using Source = std::function<float(std::uint64_t id, index_t i)>;
  using Hook = std::function<void(const MicroBatch& rows, float* values, index_t count)>;

  Floats parameters;  ///< layer after layer: weights [output][input], then biases
  Floats gradients;   ///< of the same shape
  Source input = [](std::uint64_t id, index_t i) { return random_value(1, id, 0, i); };
  Source target = [](std::uint64_t id, index_t i) { return random_value(2, id, 0, i); };
  Hook on_output, on_input_gradient;  ///< may change what a pass returns

  /// Layers [first, last) of a model with layers widths[l] -> widths[l + 1].
  Layers(std::vector<index_t> widths, index_t first, index_t last)
      : widths_(std::move(widths)), first_(first), last_(last) {
    for (index_t l = first_; l < last_; ++l) {
      const float scale = 1.4F / std::sqrt(static_cast<float>(width(l)));
      for (index_t k = 0; k < width(l) * width(l + 1); ++k)
        parameters.push_back(scale * random_value(3, static_cast<std::uint64_t>(l), 0, k));
      for (index_t k = 0; k < width(l + 1); ++k)
        parameters.push_back(0.1F * random_value(4, static_cast<std::uint64_t>(l), 0, k));
    }
    gradients.resize(parameters.size());
  }
  /// Stage `stage` of a model that is cut into parts of about as many layers.
  static Layers part(const std::vector<index_t>& widths, int stage, int stages) {
    const auto layers = static_cast<index_t>(widths.size()) - 1;
    return {widths, layers * stage / stages, layers * (stage + 1) / stages};
  }

  index_t input_elements() const { return is_first() ? 0 : width(first_); }
  index_t output_elements() const { return is_last() ? 0 : width(last_); }

  const float* forward(const MicroBatch& rows, const float* given) {
    Held& held = held_at(rows);
    if (is_first()) {
      held.own_input.resize(size(rows.rows * width(0)));
      for (index_t r = 0; r < rows.rows; ++r)
        for (index_t i = 0; i < width(0); ++i) held.own_input[size(r * width(0) + i)] = input(rows.ids[r], i);
      given = held.own_input.data();
    }
    held.input = given;
    held.outputs.resize(size(last_ - first_));
    const float* w = parameters.data();
    for (index_t l = first_; l < last_; ++l) {
      const float* const x = held.input_of(l - first_);
      Floats& y = held.outputs[size(l - first_)];
      const index_t n = width(l), m = width(l + 1);
      y.resize(size(rows.rows * m));
      for (index_t r = 0; r < rows.rows; ++r)
        for (index_t o = 0; o < m; ++o) {
          float sum = w[n * m + o];
          for (index_t i = 0; i < n; ++i) sum += w[o * n + i] * x[r * n + i];
          y[size(r * m + o)] = has_relu(l) && !(sum > 0) ? 0 : sum;
        }
      w += n * m + m;
    }
    Floats& output = held.outputs.back();
    if (on_output) on_output(rows, output.data(), static_cast<index_t>(output.size()));
    return is_last() ? nullptr : output.data();
  }

  double loss(const MicroBatch& rows) {
    const Floats& y = held_at(rows).outputs.back();
    double sum = 0;
    for (index_t r = 0; r < rows.rows; ++r)
      for (index_t o = 0; o < width(last_); ++o) {
        const auto apart = static_cast<double>(y[size(r * width(last_) + o)] - target(rows.ids[r], o));
        sum += apart * apart / 2;
      }
    return rows.weight * sum / static_cast<double>(rows.rows);
  }

  const float* backward(const MicroBatch& rows, const float* output_gradient) {
    Held& held = held_at(rows);
    if (is_last()) {
      const auto share = static_cast<float>(rows.weight / static_cast<double>(rows.rows));
      gradient_.resize(size(rows.rows * width(last_)));
      for (index_t r = 0; r < rows.rows; ++r)
        for (index_t o = 0; o < width(last_); ++o) {
          const std::size_t k = size(r * width(last_) + o);
          gradient_[k] = share * (held.outputs.back()[k] - target(rows.ids[r], o));
        }
    } else {
      gradient_.assign(output_gradient, output_gradient + rows.rows * width(last_));
    }
    std::size_t place = parameters.size();
    for (index_t l = last_ - 1; l >= first_; --l) {
      const float* const x = held.input_of(l - first_);
      const Floats& y = held.outputs[size(l - first_)];
      const index_t n = width(l), m = width(l + 1);
      place -= size(n * m + m);
      const float* const w = parameters.data() + place;
      float* const g = gradients.data() + place;
      input_gradient_.assign(size(rows.rows * n), 0);
      for (index_t r = 0; r < rows.rows; ++r)
        for (index_t o = 0; o < m; ++o) {
          if (has_relu(l) && !(y[size(r * m + o)] > 0)) continue;
          const float here = gradient_[size(r * m + o)];
          g[n * m + o] += here;
          for (index_t i = 0; i < n; ++i) {
            g[o * n + i] += here * x[r * n + i];
            input_gradient_[size(r * n + i)] += here * w[o * n + i];
          }
        }
      gradient_.swap(input_gradient_);
    }
    if (on_input_gradient) on_input_gradient(rows, gradient_.data(), static_cast<index_t>(gradient_.size()));
    return is_first() ? nullptr : gradient_.data();
  }

  void zero_gradients() { std::fill(gradients.begin(), gradients.end(), 0.0F); }
  void descend(float rate) {
    for (std::size_t k = 0; k < parameters.size(); ++k) parameters[k] -= rate * gradients[k];
  }

 private:
  /// A micro-batch between its passes.
  struct Held {
    const float* input = nullptr;
    Floats own_input;
    std::vector<Floats> outputs;
    const float* input_of(index_t layer) const {
      return layer == 0 ? input : outputs[size(layer - 1)].data();
    }
  };

  static std::size_t size(index_t i) { return static_cast<std::size_t>(i); }
  index_t width(index_t l) const { return widths_[size(l)]; }
  bool is_first() const { return first_ == 0; }
  bool is_last() const { return size(last_) + 1 == widths_.size(); }
  bool has_relu(index_t l) const { return size(l) + 2 < widths_.size(); }
  Held& held_at(const MicroBatch& rows) {
    if (held_.size() <= size(rows.index)) held_.resize(size(rows.index) + 1);
    return held_[size(rows.index)];
  }

  std::vector<index_t> widths_;
  index_t first_, last_;
  std::vector<Held> held_;
  Floats gradient_, input_gradient_;
};

/// What a pipeline with exact messages does in a step, by one rank: `model` has all layers. Returns the loss.
inline double one_rank_step(Layers& model, const Ids& ids, index_t micro_batch, bool training = true) {
  const auto all = static_cast<index_t>(ids.size());
  std::vector<MicroBatch> parts;
  for (index_t first = 0; first < all; first += micro_batch) {
    const index_t rows = std::min(micro_batch, all - first);
    parts.push_back({static_cast<index_t>(parts.size()), first, rows, ids.data() + first,
                     static_cast<double>(rows) / static_cast<double>(all), training});
  }
  double loss = 0;
  for (const MicroBatch& part : parts) {
    model.forward(part, nullptr);
    loss += model.loss(part);
  }
  if (training)
    for (const MicroBatch& part : parts) model.backward(part, nullptr);
  return loss;
}

/// A stage without a model: its activations and gradients are what two functions say, and it keeps what it is given.
/// Stage s has elements[s - 1] elements an example before it and elements[s] behind it.
class Scripted {
 public:
  /// (stage, example, `time`, element); examples that are not kept are told apart by their row.
  using Script = std::function<float(int stage, std::uint64_t id, std::uint64_t time, index_t i)>;

  std::uint64_t time = 0;  ///< which the test moves on
  Script activation = [](int stage, std::uint64_t id, std::uint64_t now, index_t i) {
    const auto stream = static_cast<std::uint64_t>(stage);
    return random_value(10 + stream, id, 0, i) + 0.2F * random_value(20 + stream, id, now, i);
  };
  Script gradient = [](int stage, std::uint64_t id, std::uint64_t now, index_t i) {
    return random_value(30 + static_cast<std::uint64_t>(stage), id, now, i);
  };
  Floats inputs, output_gradients;  ///< of the last batch, by row

  Scripted(int stage, std::vector<index_t> elements) : stage_(stage), elements_(std::move(elements)) {}

  index_t input_elements() const { return stage_ == 0 ? 0 : elements_[static_cast<std::size_t>(stage_ - 1)]; }
  index_t output_elements() const {
    const auto stage = static_cast<std::size_t>(stage_);
    return stage == elements_.size() ? 0 : elements_[stage];
  }
  const float* forward(const MicroBatch& rows, const float* input) {
    keep(rows, input, input_elements(), inputs);
    return write(rows, activation, output_elements(), output_);
  }
  const float* backward(const MicroBatch& rows, const float* output_gradient) {
    keep(rows, output_gradient, output_elements(), output_gradients);
    return write(rows, gradient, input_elements(), input_gradient_);
  }
  double loss(const MicroBatch& rows) { return rows.weight; }

 private:
  static void keep(const MicroBatch& rows, const float* given, index_t elements, Floats& kept) {
    const auto end = static_cast<std::size_t>((rows.first + rows.rows) * elements);
    if (rows.first == 0 || kept.size() < end) kept.resize(end);
    if (given != nullptr) std::copy_n(given, rows.rows * elements, kept.data() + rows.first * elements);
  }
  const float* write(const MicroBatch& rows, const Script& script, index_t elements, Floats& place) const {
    if (elements == 0) return nullptr;
    place.resize(static_cast<std::size_t>(rows.rows * elements));
    for (index_t r = 0; r < rows.rows; ++r) {
      const std::uint64_t id =
          rows.ids[r] == no_example ? 1'000'000 + static_cast<std::uint64_t>(rows.first + r) : rows.ids[r];
      for (index_t i = 0; i < elements; ++i)
        place[static_cast<std::size_t>(r * elements + i)] = script(stage_, id, time, i);
    }
    return place.data();
  }

  int stage_;
  std::vector<index_t> elements_;
  Floats output_, input_gradient_;
};

/// GPipe, or with `ahead` from 0 on OneForwardOneBackward: a type for all schedules, for the sake of compile time.
struct AnySchedule {
  int ahead = -1;

  void check() const {
    if (ahead >= 0) late().check();
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ahead", static_cast<double>(ahead));
  }
  index_t actions(index_t count) const { return ahead < 0 ? GPipe::actions(count) : late().actions(count); }
  index_t in_flight(int stage, int stages, index_t count) const {
    return ahead < 0 ? GPipe::in_flight(stage, stages, count) : late().in_flight(stage, stages, count);
  }
  index_t lead() const { return ahead < 0 ? GPipe::lead() : late().lead(); }
  Action at(index_t k, int stage, int stages, index_t count) const {
    return ahead < 0 ? GPipe::at(k, stage, stages, count) : late().at(k, stage, stages, count);
  }

 private:
  OneForwardOneBackward late() const { return {ahead}; }
};

/// Runs `program(transport)` on a thread for each stage.
template <class Program>
void on_stages(int stages, Program program, std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  ThreadGroup(stages, deadline).run(program);
}

/// The copies on both sides of a stage, by example.
struct Copies {
  using Side = std::map<std::uint64_t, std::vector<std::byte>>;
  Side incoming, outgoing;
  bool operator==(const Copies&) const = default;
};
template <class P>
Copies copies_of(P& pipeline) {
  Copies copies;
  const terse::detail::ExampleIndex& examples = pipeline.examples();
  pipeline.copies(examples.end(), [&](const std::string& name, view<std::byte> rows, index_t row_bytes) {
    for (index_t slot = 0; slot < examples.end(); ++slot) {
      if (examples.id(slot) == no_example) continue;
      const std::byte* const row = rows.data() + slot * row_bytes;
      (name == "incoming" ? copies.incoming : copies.outgoing)[examples.id(slot)].assign(row,
                                                                                         row + row_bytes);
    }
  });
  return copies;
}

}  // namespace terse::test
