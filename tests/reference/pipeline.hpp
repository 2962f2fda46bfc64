// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/layout.hpp"

// The oracle of pipelines with compressed activations (AC-SGD; Wang et al., NeurIPS 2022, algorithm 1): linear stages,
// quadratic loss, all ranks in one thread, in double. It shares nothing with the library but `index_t`.
//
// Rows are examples, row-major and without padding. All schedules mean the same: forwards and backwards of a step's
// micro-batches in ascending order, parameters as they were before the step.
//
// Not here: packets, audits, rows of different lengths, gradients that are not finite, and scales below fp32's normal
// numbers.

namespace terse::reference {

/// The id of rows that no memory is kept of.
inline constexpr std::uint64_t anonymous = ~std::uint64_t{0};

/// What rounds a row to the nearest of some values, ties to even codes: Q, First, R and B.
///
/// Levels: blocks of `block` elements from the start of the row on, the last one maybe shorter; s = max |x| of a block;
/// t = round(x / s * D), clipped to the book; the value is t / D * s. The asymmetric book has t = -D ... D - 1 with
/// D = 2^(bits-1), the symmetric one t = -D ... D with D = 2^(bits-1) - 1. s is at most fp32's largest number.
///
/// Formats: subnormal numbers included; beyond the largest finite number, that one.
struct Rounding {
  enum class Kind { none, asymmetric, symmetric, fp32, fp16, bf16 };
  Kind kind = Kind::none;
  int bits = 0;           ///< of the two books, 2 or more
  std::size_t block = 0;  ///< of the two books, N

  static Rounding asymmetric(int bits, std::size_t block) { return {Kind::asymmetric, bits, block}; }
  static Rounding symmetric(int bits, std::size_t block) { return {Kind::symmetric, bits, block}; }
  static Rounding fp32() { return {Kind::fp32, 0, 0}; }
  static Rounding fp16() { return {Kind::fp16, 0, 0}; }
  static Rounding bf16() { return {Kind::bf16, 0, 0}; }
  /// For a store: 255 levels, a scale for each 64 elements.
  static Rounding int8() { return symmetric(8, 64); }

  /// Finite `row`, rounded. Adds to `close_calls` the elements that would round elsewhere if they were changed by up to
  /// `noise`. What is halfway exactly is none where floats would find it so, too: with a scale that is a power of 2.
  std::vector<double> operator()(std::vector<double> row, double noise, index_t& close_calls) const {
    if (kind == Kind::asymmetric || kind == Kind::symmetric) to_levels(row, noise, close_calls);
    // Where a sum's own rounding in fp32 may turn that to fp32, this tells nothing.
    if (kind == Kind::fp32) to_format(row, 24, -126, largest_float, 0, close_calls);
    if (kind == Kind::fp16) to_format(row, 11, -14, 65504, noise, close_calls);
    if (kind == Kind::bf16) to_format(row, 8, -126, 0x1.FEp127, noise, close_calls);
    return row;
  }
  std::vector<double> operator()(std::vector<double> row) const {
    index_t ignored = 0;
    return (*this)(std::move(row), 0, ignored);
  }

 private:
  static constexpr double largest_float = 0x1.FFFFFEp127;

  /// Ties to even.
  static double nearest(double t) {
    const double below = std::floor(t), over = t - below;
    if (over != 0.5) return over < 0.5 ? below : below + 1;
    return std::fmod(below, 2) == 0 ? below : below + 1;
  }

  void to_levels(std::vector<double>& row, double noise, index_t& close_calls) const {
    if (bits < 2 || block == 0) throw std::invalid_argument("a book needs two bits and a block");
    const double half = std::ldexp(1.0, bits - 1);
    const double divisor = kind == Kind::asymmetric ? half : half - 1, highest = half - 1;
    for (std::size_t begin = 0; begin < row.size(); begin += block) {
      const std::size_t end = std::min(row.size(), begin + block);
      double scale = 0;
      for (std::size_t k = begin; k < end; ++k) scale = std::max(scale, std::abs(row[k]));
      scale = std::min(scale, largest_float);
      for (std::size_t k = begin; k < end; ++k) {
        if (scale == 0) {
          row[k] = 0;
          continue;
        }
        const double t = row[k] / scale * divisor, clipped = std::clamp(t, -divisor, highest);
        const double code = nearest(clipped), from_tie = 0.5 - std::abs(t - code);
        int exponent = 0;
        const bool exact = from_tie == 0 && std::frexp(scale, &exponent) == 0.5;
        if (t < highest + 0.5 && from_tie * scale / divisor < noise && !exact) ++close_calls;
        row[k] = code / divisor * scale;
      }
    }
  }

  static void to_format(std::vector<double>& row, int digits, int least_exponent, double largest,
                        double noise, index_t& close_calls) {
    for (double& value : row) {
      if (value == 0) continue;
      const double step = std::ldexp(1.0, std::max(std::ilogb(value), least_exponent) - (digits - 1));
      const double t = value / step, code = nearest(t), from_tie = 0.5 - std::abs(t - code);
      if (from_tie != 0 && from_tie * step < noise && std::abs(value) < largest) ++close_calls;
      value = std::clamp(code * step, -largest, largest);
    }
  }
};

/// What lies between two stages, forward, both sides of it at once, since their copies are equal.
///
///     changes, first visit     x = First(a)                          m = R(x)
///     changes, later           d = a - m    q = Q(d)    x = m + q    m = R(x)
///     direct                   x = Q(a)
///     exact                    x = a
///
/// An element that is not finite counts as 0.
struct Boundary {
  enum class Mode { changes, direct, exact };
  struct Options {
    Mode mode = Mode::changes;
    Rounding forward;  ///< Q
    Rounding first;    ///< First
    Rounding store;    ///< R
    std::size_t capacity = std::numeric_limits<std::size_t>::max();
    bool send_whole = false;  ///< when full, unknown rows travel by First and are not kept; else refused
    /// What is uncertain of an activation in a run in float, as a share of the largest one of its row.
    double margin = 1e-6;
  };

  Options options;
  std::map<std::uint64_t, std::vector<double>> memory;  ///< m, by id
  std::vector<std::uint64_t> order;                     ///< the ids in memory, in order of first visit
  /// Roundings by Q, R and First so far that `margin` might turn. While there are none, a run in float takes the same
  /// codes.
  index_t close_calls = 0;

  struct Visit {
    std::vector<double> x;  ///< what the receiver computes with
    std::vector<double> d;  ///< what went through Q: the change, or a itself
    bool fresh = false;     ///< by First
  };

  /// One row. Throws std::invalid_argument when the memory is full and may not be.
  Visit visit(std::uint64_t id, std::vector<double> a) {
    double largest = 0;
    for (double& value : a) {
      if (!std::isfinite(value)) value = 0;
      largest = std::max(largest, std::abs(value));
    }
    const double noise = options.margin * largest;
    if (options.mode == Mode::exact) return {a, a};
    if (options.mode == Mode::direct) return {options.forward(a, noise, close_calls), a};

    const auto known = memory.find(id);
    if (id == anonymous || known == memory.end()) {
      Visit visit{options.first(a, noise, close_calls), a, true};
      if (id == anonymous || (memory.size() >= options.capacity && options.send_whole)) return visit;
      if (memory.size() >= options.capacity) throw std::invalid_argument("the memory of examples is full");
      memory[id] = options.store(visit.x, noise, close_calls);
      order.push_back(id);
      return visit;
    }
    std::vector<double>& m = known->second;
    if (m.size() != a.size()) throw std::invalid_argument("rows have one length");
    Visit visit{{}, a, false};
    for (std::size_t k = 0; k < a.size(); ++k) visit.d[k] = a[k] - m[k];
    visit.x = options.forward(visit.d, noise, close_calls);
    for (std::size_t k = 0; k < a.size(); ++k) visit.x[k] += m[k];
    m = options.store(visit.x, noise, close_calls);
    return visit;
  }

  void forget(std::uint64_t id) {
    if (memory.erase(id) > 0) order.erase(std::find(order.begin(), order.end(), id));
  }
  void forget() {
    memory.clear();
    order.clear();
  }
};

/// y = W x + c, then max(0, y) with `relu`, whose derivative at 0 is 0.
struct LinearStage {
  std::size_t inputs = 0, outputs = 0;
  std::vector<double> weights;  ///< W, [output][input]
  std::vector<double> biases;   ///< c, [output]
  bool relu = false;
  std::vector<double> weight_gradients, bias_gradients;  ///< of the last step

  void check() const {
    if (weights.size() != inputs * outputs || biases.size() != outputs)
      throw std::invalid_argument("a stage has inputs * outputs weights and outputs biases");
  }
  void zero_gradients() {
    weight_gradients.assign(weights.size(), 0);
    bias_gradients.assign(biases.size(), 0);
  }

  /// The outputs of whole rows.
  std::vector<double> forward(const std::vector<double>& x) const {
    const std::size_t rows = x.size() / inputs;
    std::vector<double> y(rows * outputs);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < outputs; ++o) {
        double sum = biases[o];
        for (std::size_t i = 0; i < inputs; ++i) sum += weights[o * inputs + i] * x[r * inputs + i];
        y[r * outputs + o] = relu && !(sum > 0) ? 0 : sum;
      }
    return y;
  }

  /// Adds to the gradients what the rows `x` with outputs `y` have, and returns dLoss/dx of dLoss/dy.
  std::vector<double> backward(const std::vector<double>& x, const std::vector<double>& y,
                               const std::vector<double>& gradient) {
    const std::size_t rows = x.size() / inputs;
    std::vector<double> input_gradient(x.size());
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < outputs; ++o) {
        if (relu && !(y[r * outputs + o] > 0)) continue;
        const double g = gradient[r * outputs + o];
        bias_gradients[o] += g;
        for (std::size_t i = 0; i < inputs; ++i) {
          weight_gradients[o * inputs + i] += g * x[r * inputs + i];
          input_gradient[r * inputs + i] += g * weights[o * inputs + i];
        }
      }
    return input_gradient;
  }

  void descend(double learning_rate) {
    for (std::size_t k = 0; k < weights.size(); ++k) weights[k] -= learning_rate * weight_gradients[k];
    for (std::size_t k = 0; k < biases.size(); ++k) biases[k] -= learning_rate * bias_gradients[k];
  }
};

/// Stages in a chain with a boundary after each but the last; the last one has the loss, the mean over the batch's rows
/// of ||y - target||^2 / 2. Each step ends with W -= lr dW, c -= lr dc on all stages.
///
/// Backward the gradient g at x is sent as B(g), which the stage before takes as the gradient at its output a.
struct Pipeline {
  /// A message of gradients: from stage `boundary` + 1 to stage `boundary`.
  struct Message {
    std::size_t boundary = 0;
    index_t step = 0;  ///< counts from 1
    std::size_t micro_batch = 0;
    std::size_t rows = 0, width = 0;
  };
  /// B: what is decoded of `g`, all rows of a message.
  using Backward = std::function<std::vector<double>(const Message&, const std::vector<double>& g)>;

  struct Options {
    Boundary::Options boundary;   ///< of all boundaries
    Backward backward;            ///< none: exact
    std::size_t micro_batch = 1;  ///< rows; a batch's last micro-batch may have fewer
    double learning_rate = 0;
  };
  /// What passed a boundary in the last step, all rows of the batch.
  struct Passed {
    std::vector<double> a, x, g, b;  ///< sent and received forward, then backward
    index_t fresh = 0;
  };

  Options options;
  std::vector<LinearStage> stages;
  std::vector<Boundary> boundaries;
  std::vector<Passed> passed;  ///< by boundary
  index_t steps = 0;           ///< done so far

  Pipeline(std::vector<LinearStage> stages_, Options options_)
      : options(std::move(options_)), stages(std::move(stages_)) {
    if (stages.empty() || options.micro_batch == 0)
      throw std::invalid_argument("a pipeline has stages and micro-batches have rows");
    for (std::size_t s = 0; s < stages.size(); ++s) {
      stages[s].check();
      if (s > 0 && stages[s].inputs != stages[s - 1].outputs)
        throw std::invalid_argument("stage " + std::to_string(s) + " takes other rows than it is given");
    }
    boundaries.resize(stages.size() - 1);
    for (Boundary& boundary : boundaries) boundary.options = options.boundary;
  }

  /// A B that rounds each row.
  static Backward by_row(Rounding rounding) {
    return [rounding](const Message& message, const std::vector<double>& g) {
      std::vector<double> decoded;
      for (std::size_t r = 0; r < message.rows; ++r) append(decoded, rounding(slice(g, message.width, r, 1)));
      return decoded;
    };
  }

  /// One step; returns the loss it was made from. Throws std::invalid_argument before anything has changed for a wrong
  /// number of values, a memory that would overflow and may not, and an id twice in a micro-batch (by changes).
  double train(const std::vector<std::uint64_t>& ids, const std::vector<double>& inputs,
               const std::vector<double>& targets) {
    const std::size_t rows = ids.size(), last = stages.size() - 1;
    check(rows, inputs, targets);
    check(ids);
    ++steps;
    passed.assign(boundaries.size(), {});
    for (LinearStage& stage : stages) stage.zero_gradients();

    struct Work {
      std::size_t first, rows;
      std::vector<std::vector<double>> x, y;  // [stage]
    };
    std::vector<Work> all;
    double loss = 0;
    for (std::size_t first = 0; first < rows; first += options.micro_batch) {
      Work work{first, std::min(options.micro_batch, rows - first), {}, {}};
      for (std::size_t s = 0; s < stages.size(); ++s) {
        work.x.push_back(s == 0 ? slice(inputs, stages[0].inputs, first, work.rows)
                                : cross(s - 1, ids, first, work.y[s - 1]));
        work.y.push_back(stages[s].forward(work.x[s]));
      }
      const double weight = static_cast<double>(work.rows) / static_cast<double>(rows);
      loss += weight * mean_loss(work.y[last], slice(targets, stages[last].outputs, first, work.rows));
      all.push_back(std::move(work));
    }

    for (std::size_t j = 0; j < all.size(); ++j) {
      const Work& work = all[j];
      const double weight = static_cast<double>(work.rows) / static_cast<double>(rows);
      const std::vector<double> target = slice(targets, stages[last].outputs, work.first, work.rows);
      std::vector<double> gradient(target.size());
      for (std::size_t k = 0; k < gradient.size(); ++k)
        gradient[k] = weight * (work.y[last][k] - target[k]) / static_cast<double>(work.rows);
      for (std::size_t s = stages.size(); s-- > 0;) {
        gradient = stages[s].backward(work.x[s], work.y[s], gradient);
        if (s == 0) break;
        const std::vector<double> decoded =
            options.backward ? options.backward({s - 1, steps, j, work.rows, stages[s].inputs}, gradient)
                             : gradient;
        if (decoded.size() != gradient.size())
          throw std::invalid_argument("B returns as much as it is given");
        append(passed[s - 1].g, gradient);
        append(passed[s - 1].b, decoded);
        gradient = decoded;
      }
    }
    for (LinearStage& stage : stages) stage.descend(options.learning_rate);
    return loss;
  }

  /// The loss with exact activations. Touches no memory.
  double evaluate(const std::vector<double>& inputs, const std::vector<double>& targets) const {
    check(inputs.size() / stages[0].inputs, inputs, targets);
    std::vector<double> x = inputs;
    for (const LinearStage& stage : stages) x = stage.forward(x);
    return mean_loss(x, targets);
  }

  index_t close_calls() const {
    index_t sum = 0;
    for (const Boundary& boundary : boundaries) sum += boundary.close_calls;
    return sum;
  }

 private:
  static void append(std::vector<double>& to, const std::vector<double>& values) {
    to.insert(to.end(), values.begin(), values.end());
  }
  static std::vector<double> slice(const std::vector<double>& all, std::size_t width, std::size_t first,
                                   std::size_t rows) {
    std::vector<double> part(rows * width);
    std::copy_n(all.data() + first * width, part.size(), part.data());
    return part;
  }

  void check(std::size_t rows, const std::vector<double>& inputs, const std::vector<double>& targets) const {
    if (rows == 0 || inputs.size() != rows * stages[0].inputs ||
        targets.size() != rows * stages.back().outputs)
      throw std::invalid_argument("one input and one target for each row");
  }
  void check(const std::vector<std::uint64_t>& ids) const {
    for (const Boundary& boundary : boundaries) {
      if (boundary.options.mode != Boundary::Mode::changes) continue;
      std::set<std::uint64_t> in_micro_batch, unknown;
      for (std::size_t r = 0; r < ids.size(); ++r) {
        if (r % options.micro_batch == 0) in_micro_batch.clear();
        if (ids[r] == anonymous) continue;
        if (!in_micro_batch.insert(ids[r]).second)
          throw std::invalid_argument("an example is twice in a micro-batch");
        if (boundary.memory.count(ids[r]) == 0) unknown.insert(ids[r]);
      }
      if (!boundary.options.send_whole && boundary.memory.size() + unknown.size() > boundary.options.capacity)
        throw std::invalid_argument("the memory of examples is full");
    }
  }

  /// What stage s + 1 computes with of the rows `a` of stage s, which begin at row `first` of the batch.
  std::vector<double> cross(std::size_t s, const std::vector<std::uint64_t>& ids, std::size_t first,
                            const std::vector<double>& a) {
    const std::size_t width = stages[s].outputs;
    std::vector<double> x;
    for (std::size_t r = 0; r * width < a.size(); ++r) {
      const Boundary::Visit visit = boundaries[s].visit(ids[first + r], slice(a, width, r, 1));
      append(x, visit.x);
      if (visit.fresh) ++passed[s].fresh;
    }
    append(passed[s].a, a);
    append(passed[s].x, x);
    return x;
  }

  /// The mean over the rows of ||y - target||^2 / 2.
  double mean_loss(const std::vector<double>& y, const std::vector<double>& target) const {
    double sum = 0;
    for (std::size_t k = 0; k < y.size(); ++k) sum += (y[k] - target[k]) * (y[k] - target[k]) / 2;
    return sum / static_cast<double>(y.size() / stages.back().outputs);
  }
};

}  // namespace terse::reference
