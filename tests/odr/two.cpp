// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "terse/terse.hpp"

std::vector<float> trained_in_two();

std::vector<float> trained_in_two() {
  std::vector<float> result;
  terse::ThreadGroup(2).run([&](terse::Threads& inner) {
    terse::Metered<terse::Threads> transport(inner.split(0, inner.rank()));
    const terse::Layout layout = terse::Layout::flat(1000);
    terse::OneBitAdam<> recipe;
    recipe.preconditioner.freeze = terse::AtStep{2};
    terse::Optimizer optimizer{recipe, transport, layout};
    std::vector<float> parameters(static_cast<std::size_t>(layout.size()), 1.0F);
    for (std::uint64_t step = 0; step < 5; ++step) {
      std::vector<float> gradients;
      const terse::Draw draw = terse::Draw::local(1, inner.rank(), step, terse::Purpose::user);
      for (std::uint64_t i = 0; i < parameters.size(); ++i)
        gradients.push_back(static_cast<float>(draw.below(1000, i)) - 500);
      optimizer.step(parameters, gradients);
    }
    if (inner.rank() == 0) result = parameters;
  });
  return result;
}
