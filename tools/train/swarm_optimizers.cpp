// SPDX-License-Identifier: Apache-2.0
#include "local.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/optimizer/local/async_swarm_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

namespace train {
namespace {

using Inner = terse::MomentumSgd<>;

template <class Recipe>
Made make_swarm(const Order<OnHost>& order, Recipe recipe = {}) {
  recipe.inner = inner_momentum_sgd(order);
  const auto period = static_cast<std::uint64_t>(period_of(order.options));
  if constexpr (requires { recipe.schedule; })
    recipe.schedule = {.graph = {.seed = order.options.seed}, .period = period};
  else
    recipe.period = period;
  return made(order, recipe);
}

}  // namespace

template <>
Made make<struct SwarmSgd>(const Order<OnHost>& order) {
  return make_swarm<terse::SwarmSgd<Inner>>(order);
}
template <>
Made make<struct SwarmSgdLattice>(const Order<OnHost>& order) {
  return make_swarm<terse::SwarmSgd<Inner, terse::Lattice<8>>>(
      order, {.compressor = {.step = static_cast<float>(lattice_step_of(order.options))}});
}
template <>
Made make<struct NonBlockingSwarmSgd>(const Order<OnHost>& order) {
  return make_swarm<terse::NonBlockingSwarmSgd<Inner>>(order);
}
template <>
Made make<struct AsyncSwarmSgd>(const Order<OnHost>& order) {
  return make_swarm<terse::AsyncSwarmSgd<Inner>>(order);
}

}  // namespace train
