// SPDX-License-Identifier: Apache-2.0

// From a model's tensors to an arena and back: what an optimizer works on is one view of all parameters, whose layout says where
// each tensor lies and how it is treated.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "terse/terse.hpp"

namespace {

/// As a framework may have them: each with memory of its own.
struct Tensor {
  std::string name;
  std::vector<terse::index_t> shape;
  std::vector<float> values;
};

/// How far the model ends from its optimum, 1 everywhere.
double train(terse::Threads& transport) {
  std::vector<Tensor> model{{"hidden.weight", {30, 20}, std::vector<float>(600, 0.5F)},
                            {"hidden.bias", {30}, std::vector<float>(30)},
                            {"scale", {}, {2}}};

  terse::Layout layout;
  for (const Tensor& tensor : model)
    layout.add({.name = tensor.name,
                .shape = tensor.shape,
                .weight_decay = tensor.shape.size() > 1 ? 1.0F : 0.0F,  // biases don't decay
                .compress = tensor.shape.size() > 1});                  // and travel in full precision
  std::vector<float> parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size());

  for (std::size_t k = 0; k < model.size(); ++k)
    std::copy(model[k].values.begin(), model[k].values.end(),
              parameters.begin() + layout.segments()[k].offset);

  terse::Optimizer optimizer{terse::MomentumSgd<terse::Uniform<8>>{.learning_rate = 0.05F}, transport,
                             layout};
  for (int step = 0; step < 300; ++step) {
    for (const terse::Segment& segment : layout.segments())
      for (terse::index_t i = segment.offset; i < segment.offset + segment.count; ++i)
        gradients[static_cast<std::size_t>(i)] = parameters[static_cast<std::size_t>(i)] - 1;
    optimizer.step(parameters, gradients);
    for (std::size_t k = 0; k < model.size(); ++k)
      std::copy_n(parameters.begin() + layout.segments()[k].offset, layout.segments()[k].count,
                  model[k].values.begin());
  }

  double farthest = 0;
  for (const Tensor& tensor : model)
    for (const float value : tensor.values)
      farthest = std::max(farthest, std::abs(static_cast<double>(value) - 1));
  for (const terse::Segment& segment : layout.segments())
    if (transport.rank() == 0)
      std::printf("%-14s begins at %4lld, %3lld elements\n", segment.name.c_str(),
                  static_cast<long long>(segment.offset), static_cast<long long>(segment.count));
  if (transport.rank() == 0)
    std::printf("the arena has %lld elements, padding included\n", static_cast<long long>(layout.size()));
  return farthest;
}

}  // namespace

int main() {
  try {
    double farthest[2] = {};
    terse::ThreadGroup(2).run(
        [&](terse::Threads& transport) { farthest[transport.rank()] = train(transport); });
    return std::max(farthest[0], farthest[1]) < 0.01 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
