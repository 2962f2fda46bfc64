// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// What the units of local updates have in common.

namespace train {

inline terse::MomentumSgd<> inner_momentum_sgd(const Order<OnHost>& order) {
  return {.learning_rate = order.rate(),
          .weight_decay = order.weight_decay(),
          .momentum_correction = {.momentum = order.momentum()}};
}

inline terse::Adam<> inner_adam(const Order<OnHost>& order) {
  return {.learning_rate = order.rate(), .weight_decay = order.weight_decay()};
}

/// Around an inner recipe, with whatever else this recipe has.
template <class Recipe, class Inner>
Made make_local(const Order<OnHost>& order, const Inner& inner) {
  const Options& options = order.options;
  Recipe recipe{.inner = inner, .period = static_cast<std::uint64_t>(period_of(options))};
  if constexpr (requires { recipe.outer.local_share; }) {
    recipe.schedule = {.count = static_cast<std::uint64_t>(options.fragments),
                       .delay = static_cast<std::uint64_t>(options.fragment_delay)};
    recipe.outer = {.rate = static_cast<float>(outer_learning_rate_of(options, order.method)),
                    .momentum = static_cast<float>(outer_momentum_of(options, order.method)),
                    .local_share = static_cast<float>(options.local_share)};
  } else if constexpr (requires { recipe.inner_buffers; }) {
    constexpr terse::InnerBuffers kinds[]{terse::InnerBuffers::keep, terse::InnerBuffers::reset,
                                          terse::InnerBuffers::average};
    recipe.inner_buffers = kinds[static_cast<int>(inner_buffers_of(options))];
    recipe.average_gradients_until = order.stages.average_until;
  }
  if constexpr (
      requires { recipe.outer.momentum; } && !requires { recipe.outer.local_share; })
    recipe.outer = {.rate = static_cast<float>(outer_learning_rate_of(options, order.method)),
                    .momentum = static_cast<float>(outer_momentum_of(options, order.method))};
  if constexpr (requires { recipe.merge.pullback; })
    recipe.merge = {.pullback = static_cast<float>(pullback_of(options)),
                    .anchor_momentum = static_cast<float>(anchor_momentum_of(options))};
  return made(order, recipe);
}

}  // namespace train
