// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// What the units of local updates have in common.

namespace train {

inline terse::MomentumSgd<> inner_momentum_sgd(const Options& options) {
  return {.learning_rate = static_cast<float>(options.sgd_learning_rate),
          .weight_decay = static_cast<float>(options.weight_decay),
          .momentum_correction = {.momentum = static_cast<float>(options.momentum)}};
}

inline terse::Adam<> inner_adam(const Options& options) {
  return {.learning_rate = static_cast<float>(options.learning_rate),
          .weight_decay = static_cast<float>(options.weight_decay)};
}

/// Around an inner recipe, with whatever else this recipe has.
template <class Recipe, class P, class Inner>
std::unique_ptr<AnyOptimizer> make_local(Optimizer kind, const Options& options, std::uint64_t average_until,
                                         P& place, const terse::Layout& layout, const Inner& inner) {
  Recipe recipe{.inner = inner, .period = static_cast<std::uint64_t>(period_of(options, kind))};
  if constexpr (requires { recipe.outer.local_share; }) {
    recipe.schedule = {.count = static_cast<std::uint64_t>(options.fragments),
                       .delay = static_cast<std::uint64_t>(options.fragment_delay)};
    recipe.outer = {.rate = static_cast<float>(outer_learning_rate_of(options, kind)),
                    .momentum = static_cast<float>(outer_momentum_of(options, kind)),
                    .local_share = static_cast<float>(options.local_share)};
  } else if constexpr (requires { recipe.inner_buffers; }) {
    constexpr terse::InnerBuffers kinds[]{terse::InnerBuffers::keep, terse::InnerBuffers::reset,
                                          terse::InnerBuffers::average};
    recipe.inner_buffers = kinds[static_cast<int>(inner_buffers_of(options, kind))];
    recipe.average_gradients_until = average_until;
  }
  if constexpr (
      requires { recipe.outer.momentum; } && !requires { recipe.outer.local_share; })
    recipe.outer = {.rate = static_cast<float>(outer_learning_rate_of(options, kind)),
                    .momentum = static_cast<float>(outer_momentum_of(options, kind))};
  if constexpr (requires { recipe.merge.pullback; })
    recipe.merge = {.pullback = static_cast<float>(pullback_of(options, kind)),
                    .anchor_momentum = static_cast<float>(anchor_momentum_of(options, kind))};
  return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
}

/// SwarmSgd, plain, with a lattice or non-blocking, or AsyncSwarmSgd; in swarm_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_swarm_optimizer(Optimizer kind, const Options& options, P& place,
                                                   const terse::Layout& layout);

/// OverlapLocalSgd, CocodSgd, StreamingDiLoCo around Adam, or SlowMo around StochasticGradientPush; in other_local_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_other_local_optimizer(Optimizer kind, const Options& options, P& place,
                                                         const terse::Layout& layout);

}  // namespace train
