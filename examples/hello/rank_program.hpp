// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "terse/terse.hpp"

/// What every rank runs, whatever its transport: minimizes the mean over ranks of ||x - target_rank||^2 / 2.
/// No rank knows another's target; only compressed momenta travel.
void rank_program(terse::Transport auto& transport) {
  terse::Layout layout;
  layout.add({"weight", {100, 1000}}).add({"bias", {1000}});
  std::vector<float> parameters(static_cast<std::size_t>(layout.size())), gradients(parameters.size());

  // A sign per element, 16 dense steps first: 1/32 of the traffic of fp32 from step 17 on.
  terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::Ring> recipe{
      .learning_rate = 0.05F, .preconditioner = {.freeze = terse::AtStep{16}}};
  terse::Optimizer optimizer{recipe, transport, layout};

  const float target = static_cast<float>(1 + transport.rank());
  for (int step = 1; step <= 200; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) gradients[i] = parameters[i] - target;
    if (step > 100) optimizer.recipe.learning_rate *= 0.95F;
    optimizer.step(parameters, gradients);
  }

  // Every rank holds the same parameters, to the bit: the mean of all targets.
  const float mine = parameters.front();
  terse::Assembly<float, std::remove_reference_t<decltype(transport)>> assembly(transport);
  for (const float theirs : assembly(transport, mine, terse::Phase::setup))
    if (theirs != mine) throw std::runtime_error("the ranks hold different parameters");
  const float best = static_cast<float>(transport.size() + 1) / 2;
  if (std::abs(mine - best) > 0.02F) throw std::runtime_error("the ranks have not found the mean");
  if (transport.rank() == 0)
    std::printf("ranks: %d, found: %.3f, mean of their targets: %.3f\n", transport.size(),
                static_cast<double>(mine), static_cast<double>(best));
}
