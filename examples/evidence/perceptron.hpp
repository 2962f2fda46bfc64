// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../tools/train/any_optimizer.hpp"
#include "../experiments/model.hpp"
#include "terse/core/draw.hpp"
#include "terse/transport/thread.hpp"

// The task of `stragglers` and `batches`: the perceptron of examples/experiments on Fashion-MNIST. Learning rates are chosen by the
// validation set, the last 10,000 training images.

namespace perceptron {

using experiments::Batch;
using experiments::Model;
using train::Dataset;

struct Task {
  Dataset training, validation, test;
};

/// Returns images [first, first + count).
inline Dataset part(const Dataset& of, std::int64_t first, std::int64_t count) {
  const std::int64_t pixels = of.rows * of.columns;
  Dataset some;
  some.count = count;
  some.rows = of.rows;
  some.columns = of.columns;
  some.images.assign(of.images.begin() + first * pixels, of.images.begin() + (first + count) * pixels);
  some.labels.assign(of.labels.begin() + first, of.labels.begin() + first + count);
  return some;
}
inline Task load(const std::string& folder) {
  constexpr std::int64_t held_out = 10'000;
  const Dataset training = train::load_images_labels(folder, true);
  const std::int64_t rest = training.count - held_out;
  return {part(training, 0, rest), part(training, rest, held_out), train::load_images_labels(folder, false)};
}

/// Draws a batch of the images `from`, with replacement, separately for each rank.
inline void draw_batch(const std::vector<std::int64_t>& from, std::uint64_t seed, int rank,
                       std::uint64_t step, Batch& batch) {
  const terse::Draw draw = terse::Draw::local(seed, rank, step, terse::Purpose::user);
  for (std::size_t k = 0; k < batch.size(); ++k)
    batch[k] = from[static_cast<std::size_t>(draw.below(from.size(), k))];
}

/// JSON has no NaN.
inline std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
}

/// Sets each kind of method's learning rate.
inline void set_rate(train::Options& options, double rate) {
  options.learning_rate = options.lamb_learning_rate = options.sgd_learning_rate = rate;
}

/// Runs a training. Prints a line that says so if its parameters diverge, which is a result, too.
template <class Training>
void unless_diverged(const Training& training) {
  const auto diverged = [](const std::exception& fault) {
    fmt::print(stderr, "diverged: {}\n", fault.what());
    fmt::print("{{\"diverged\": true}}\n");
  };
  try {
    training();
  } catch (const terse::non_finite_error& fault) {
    diverged(fault);
  } catch (const terse::wire_error& fault) {  // of a lattice, whose ranks are too far apart
    diverged(fault);
  }
}

template <class Program>
int exit_status(const char* name, const Program& program) {
  try {
    program();
    return EXIT_SUCCESS;
  } catch (const std::exception& fault) {
    fmt::print(stderr, "{}: {}\n", name, fault.what());
    return EXIT_FAILURE;
  }
}

}  // namespace perceptron
