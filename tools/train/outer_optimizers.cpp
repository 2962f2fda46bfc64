// SPDX-License-Identifier: Apache-2.0
#include "local.hpp"
#include "marked_layout.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/distro.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/optimizer/muon.hpp"

namespace train {

template <>
Made make<struct SparseLoCo>(const Order<OnHost>& order) {
  terse::SparseLoCo<terse::Adam<>> recipe{.inner = inner_adam(order),
                                          .period = static_cast<std::uint64_t>(period_of(order.options))};
  recipe.outer.rate = static_cast<float>(outer_learning_rate_of(order.options, order.method));
  recipe.compressor.inner.selection.ratio = ratio_of(order.options, order.method);
  return made(order, recipe, matrices_alone(order.layout));
}
template <>
Made make<struct CocktailSgd>(const Order<OnHost>& order) {
  terse::CocktailSgd<terse::Adam<>> recipe{.inner = inner_adam(order),
                                           .period = static_cast<std::uint64_t>(period_of(order.options))};
  return made(order, recipe, matrices_alone(order.layout));
}
template <>
Made make<struct DisTrO>(const Order<OnHost>& order) {
  terse::DisTrO<> recipe{.learning_rate = order.rate(), .weight_decay = order.weight_decay()};
  recipe.compressor.inner.selection.ratio = ratio_of(order.options, order.method);
  return made(order, recipe, matrices_alone(order.layout));
}
template <>
Made make<struct NoLoCo>(const Order<OnHost>& order) {
  return make_local<terse::NoLoCo<terse::Adam<>>>(order, inner_adam(order));
}
/// In 2 bits.
template <>
Made make<struct MuLoCo>(const Order<OnHost>& order) {
  using Recipe = terse::DiLoCo<terse::Muon<>, terse::Uniform<2>, terse::Residual>;
  Recipe recipe{.inner = {.learning_rate = order.rate(), .weight_decay = order.weight_decay()},
                .period = static_cast<std::uint64_t>(period_of(order.options)),
                .outer = {.rate = static_cast<float>(outer_learning_rate_of(order.options, order.method)),
                          .momentum = static_cast<float>(outer_momentum_of(order.options, order.method))},
                .error_feedback = {.decay = 0.9F}};
  return made(order, recipe, hidden_matrices(matrices_alone(order.layout)));
}

}  // namespace train
