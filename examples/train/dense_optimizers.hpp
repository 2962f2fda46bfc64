// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// The body of make_dense_optimizer, for the units that instantiate it.

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer kind, const Options& options, P& place,
                                                   const terse::Layout& layout) {
  const auto weight_decay = static_cast<float>(options.weight_decay);
  if (kind == Optimizer::momentum_sgd)
    return std::make_unique<TheOptimizer<terse::MomentumSgd<>, P>>(
        terse::MomentumSgd<>{.learning_rate = static_cast<float>(options.sgd_learning_rate),
                             .weight_decay = weight_decay,
                             .momentum_correction = {.momentum = static_cast<float>(options.momentum)}},
        place, layout, terse_options(options));
  return std::make_unique<TheOptimizer<terse::Adam<>, P>>(
      terse::Adam<>{.learning_rate = static_cast<float>(options.learning_rate), .weight_decay = weight_decay},
      place, layout, terse_options(options));
}

}  // namespace train
