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
Recipe mixing_recipe(Optimizer kind, const Options& options) {
  using G = decltype(Recipe{}.topology.graph);
  Recipe recipe{.learning_rate = static_cast<float>(rate_of(options, kind).rate),
                .weight_decay = static_cast<float>(options.weight_decay),
                .consensus_rate = static_cast<float>(consensus_rate_of(options, kind)),
                .average_every = static_cast<std::uint64_t>(options.average_every),
                .topology = {G{AnyGraph<G::fixed, G::symmetric>(options.graph, options.seed)}}};
  set_momentum(recipe.momentum_correction, static_cast<float>(options.momentum));
  return recipe;
}

template <class Recipe, class P>
std::unique_ptr<AnyOptimizer> make_mixing(Optimizer kind, const Options& options, P& place,
                                          const terse::Layout& layout) {
  return std::make_unique<TheOptimizer<Recipe, P>>(mixing_recipe<Recipe>(kind, options), place, layout,
                                                   terse_options(options));
}

/// DecentLaM, MomentumConsensus, D2, D2DmSgd, GradientTracking, MomentumTracking or StochasticGradientPush; in
/// corrected_gossip_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_corrected_gossip_optimizer(Optimizer kind, const Options& options,
                                                              P& place, const terse::Layout& layout);

/// ChocoSgd, DeepSqueeze, DcdSgd, Beer or MoniquaSgd; in compressed_gossip_optimizers.cpp.
template <class P>
std::unique_ptr<AnyOptimizer> make_compressed_gossip_optimizer(Optimizer kind, const Options& options,
                                                               P& place, const terse::Layout& layout);

}  // namespace train
