// SPDX-License-Identifier: Apache-2.0
#include "local.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_swarm_optimizer(Optimizer kind, const Options& options, P& place,
                                                   const terse::Layout& layout) {
  using Inner = terse::MomentumSgd<>;
  using Lattice = terse::Lattice<8>;
  const Inner inner = inner_momentum_sgd(options);
  const auto period = static_cast<std::uint64_t>(period_of(options, kind));
  const auto make = [&]<class Recipe>(Recipe recipe) -> std::unique_ptr<AnyOptimizer> {
    if constexpr (requires { recipe.schedule; })
      recipe.schedule = {.graph = {.seed = options.seed}, .period = period};
    else
      recipe.period = period;
    return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
  };
  switch (kind) {
    case Optimizer::swarm_sgd_lattice:
      return make(terse::SwarmSgd<Inner, Lattice>{
          .inner = inner, .compressor = {.step = static_cast<float>(lattice_step_of(options, kind))}});
    case Optimizer::swarm_sgd_non_blocking:
      return make(terse::NonBlockingSwarmSgd<Inner>{.inner = inner});
    case Optimizer::async_swarm_sgd:
      return make(terse::AsyncSwarmSgd<Inner>{.inner = inner});
    default:
      return make(terse::SwarmSgd<Inner>{.inner = inner});
  }
}

template std::unique_ptr<AnyOptimizer> make_swarm_optimizer(Optimizer, const Options&, OnHost&,
                                                            const terse::Layout&);

}  // namespace train
