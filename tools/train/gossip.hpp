// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "any_graph.hpp"
#include "any_optimizer.hpp"
#include "terse/optimizer/parameter_mixing.hpp"

// What the units of decentralized optimizers have in common. Each recipe is instantiated for one type of graph; the
// library's own checks then hold for every graph that this type may hold.

namespace train {

using OnAnyGraph = terse::Mixing<KeepsMean>;
using OnFixedGraph = terse::Mixing<Fixed>;
using OnFixedSymmetricGraph = terse::Mixing<FixedSymmetric>;

/// In the rule itself or in the direction that it is made with; nowhere in rules without momentum.
template <class Rule>
void set_momentum(Rule& rule, float momentum) {
  if constexpr (requires { rule.direction; }) set_momentum(rule.direction, momentum);
  if constexpr (requires { rule.momentum; }) rule.momentum = momentum;
  // The paper's mu = beta.
  if constexpr (requires { rule.decay; }) rule.decay = momentum;
}

template <class Recipe>
Recipe mixing_recipe(const Order<OnHost>& order) {
  using G = decltype(Recipe{}.topology.graph);
  const Options& options = order.options;
  Recipe recipe{.learning_rate = order.rate(),
                .weight_decay = order.weight_decay(),
                .consensus_rate = static_cast<float>(consensus_rate_of(options, order.method)),
                .average_every = static_cast<std::uint64_t>(options.average_every),
                .topology = {G{AnyGraph<G::fixed, G::symmetric>(options.graph, options.seed)}}};
  set_momentum(recipe.momentum_correction, order.momentum());
  return recipe;
}

template <class Recipe>
Made make_mixing(const Order<OnHost>& order) {
  return made(order, mixing_recipe<Recipe>(order));
}

}  // namespace train
