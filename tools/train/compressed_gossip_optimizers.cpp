// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/compressed_gossip.hpp"
#include "terse/optimizer/moniqua_sgd.hpp"

namespace train {
namespace {

template <int Bits, class Rounding>
using Levels = terse::Uniform<Bits, Rounding, terse::Symmetric, terse::MaxAbs, terse::PerBlock<256>>;
using Nearest4 = Levels<4, terse::Nearest>;
using Nearest8 = Levels<8, terse::Nearest>;
using Stochastic8 = Levels<8, terse::Stochastic>;

}  // namespace

template <>
Made make<struct ChocoSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::ChocoSgd<Nearest4, OnFixedGraph, terse::MomentumDirection>>(order);
}
template <>
Made make<struct DeepSqueeze>(const Order<OnHost>& order) {
  return make_mixing<terse::DeepSqueeze<Nearest8, OnAnyGraph, terse::MomentumDirection>>(order);
}
template <>
Made make<struct DcdSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::DcdSgd<Stochastic8, OnFixedGraph>>(order);
}
template <>
Made make<struct Beer>(const Order<OnHost>& order) {
  return make_mixing<terse::Beer<Nearest4, OnFixedGraph>>(order);
}
template <>
Made make<struct MoniquaSgd>(const Order<OnHost>& order) {
  using Recipe = terse::MoniquaSgd<terse::Moniqua<8>, OnAnyGraph, terse::MomentumDirection>;
  Recipe recipe = mixing_recipe<Recipe>(order);
  recipe.compressor.bound = static_cast<float>(moniqua_bound_of(order.options));
  return made(order, recipe);
}

}  // namespace train
