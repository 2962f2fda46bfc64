// SPDX-License-Identifier: Apache-2.0

// An optimizer from all sides: what it will send and what it has sent, a schedule, rates of layers that change during the
// run, a mask, groups, gradients that leave layer by layer, messages that leave before the gradient is there, and the model to evaluate.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/terse.hpp"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "optimizer: %s\n", what);
  std::exit(1);
}

using Floats = std::vector<float>;

/// Towards a target of each rank's own.
void gradient_of(const Floats& parameters, int rank, Floats& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    gradients[i] = parameters[i] - static_cast<float>(1 + rank);
}

void train(terse::Threads& transport) {
  terse::Layout layout;
  layout.add({"body", {100, 100}}).add({"head", {100, 10}, /*learning_rate_scale=*/2});
  Floats parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size());

  terse::OneBitAdam<terse::Ring> recipe{.learning_rate = 0.05F,
                                        .preconditioner = {.freeze = terse::AtStep{10}}};
  terse::Optimizer optimizer{recipe, transport, layout, {.seed = 1, .clip_norm = 1000}};

  const terse::StepBytes ahead = optimizer.bytes_per_step();
  if (transport.rank() == 0)
    std::printf("a step sends %lld bytes in full precision and %lld compressed\n",
                static_cast<long long>(ahead.full_precision), static_cast<long long>(ahead.compressed));

  // The lower half of the body has no part in compressed steps.
  std::vector<std::uint8_t> mask(parameters.size(), 1);
  std::fill_n(mask.begin() + layout.segments()[0].offset + 50 * 100, 50 * 100, std::uint8_t{0});
  optimizer.mask(mask);

  Floats at_the_freeze;
  for (int step = 1; step <= 100; ++step) {
    gradient_of(parameters, transport.rank(), gradients);
    if (step == 11) at_the_freeze = parameters;
    if (step > 50) optimizer.learning_rate(0.95F * optimizer.learning_rate());
    if (step == 80) optimizer.rescale("body", /*learning_rate_scale=*/0, /*weight_decay=*/0);
    const terse::StepResult result = optimizer.step(parameters, gradients);
    require(result.applied, "a step was skipped");
    require(result.compressed == (step > 10), "the freeze came at another step");
    const terse::index_t most = result.compressed ? ahead.compressed : ahead.full_precision;
    const bool first = step == 1;  // compares parameters besides
    require(first || result.bytes_sent == static_cast<std::uint64_t>(most), "a step has sent other bytes");
  }
  require(parameters[0] != at_the_freeze[0], "an element outside the mask has not moved");
  require(parameters[50 * 100] == at_the_freeze[50 * 100], "a masked element has moved");
}

/// The gradient of one layer, as a backward pass finishes it.
void gradient_of_segment(const terse::Segment& segment, const Floats& parameters, int rank,
                         Floats& gradients) {
  for (terse::index_t i = segment.offset; i < segment.offset + segment.count; ++i)
    gradients[static_cast<std::size_t>(i)] =
        parameters[static_cast<std::size_t>(i)] - static_cast<float>(1 + rank);
}

/// Gradients travel while others are computed.
void overlap(terse::Threads& transport) {
  terse::Layout layout;
  layout.add({"body", {100, 100}}).add({"head", {100, 10}});
  Floats parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size());
  terse::Optimizer optimizer{
      terse::Adam<>{.learning_rate = 0.05F}, transport, layout, {.slice_bytes = 16 << 10}};
  for (int step = 1; step <= 200; ++step) {
    optimizer.begin(parameters, gradients);
    for (terse::index_t segment = 1; segment >= 0; --segment) {
      gradient_of_segment(layout.segments()[static_cast<std::size_t>(segment)], parameters, transport.rank(),
                          gradients);
      optimizer.ready(segment);
    }
    optimizer.step(parameters, gradients);
  }
  require(parameters[0] > 2.4F && parameters[0] < 2.6F, "the model is far from the mean target");
}

/// Hyper-parameters that differ from segment to segment.
void groups(terse::Threads& transport) {
  terse::Layout layout;
  layout.add({.name = "body", .shape = {100, 100}});
  layout.add({.name = "norm", .shape = {100}, .group = 1})
      .add({.name = "head", .shape = {100, 10}, .group = 1});
  terse::Optimizer optimizer{terse::Adam<>{.learning_rate = 0.01F, .weight_decay = 0.1F}, transport, layout};
  optimizer.group(1).beta1 = 0.8F;
  optimizer.group(1).learning_rate = 0.02F;
  optimizer.group(1).weight_decay = 0;

  Floats parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size());
  gradient_of(parameters, transport.rank(), gradients);
  optimizer.step(parameters, gradients);
  // Adam's first step is as long as the learning rate.
  const float body = parameters[0], head = parameters[static_cast<std::size_t>(layout.segments()[2].offset)];
  require(std::abs(body - 0.01F) < 1e-6F && std::abs(head - 0.02F) < 1e-6F, "a group has other rates");
}

/// Ranks with models of their own; messages travel while the gradient is computed.
void gossip(terse::Threads& transport) {
  const terse::Layout layout = terse::Layout::flat(1000);
  Floats parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size()),
      model(parameters.size());
  terse::Optimizer optimizer{terse::AwcDSgd<>{.learning_rate = 0.1F}, transport, layout};
  for (int step = 1; step <= 100; ++step) {
    optimizer.begin(parameters);
    gradient_of(parameters, transport.rank(), gradients);
    optimizer.step(parameters, gradients);
  }
  optimizer.mean_parameters(parameters, model);
  require(model[0] > 2.4F && model[0] < 2.6F, "the mean model is far from the mean target");
}

}  // namespace

int main() try {
  terse::ThreadGroup(4).run([](terse::Threads& transport) {
    train(transport);
    overlap(transport);
    groups(transport);
    gossip(transport);
  });
} catch (const std::exception& failure) {
  std::fprintf(stderr, "optimizer: %s\n", failure.what());
  return 1;
}
