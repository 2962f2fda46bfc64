// SPDX-License-Identifier: Apache-2.0
#include "local.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/topology/ring.hpp"

namespace train {

using Inner = terse::MomentumSgd<>;

/// And PostLocalSgd, whose gradients are averaged at first.
template <>
Made make<struct LocalSgd>(const Order<OnHost>& order) {
  return make_local<terse::LocalSgd<Inner>>(order, inner_momentum_sgd(order));
}
template <>
Made make<struct SlowMo>(const Order<OnHost>& order) {
  return make_local<terse::SlowMo<Inner>>(order, inner_momentum_sgd(order));
}
template <>
Made make<struct BmufClassical>(const Order<OnHost>& order) {
  return make_local<terse::Bmuf<Inner, terse::Block::classical>>(order, inner_momentum_sgd(order));
}
template <>
Made make<struct BmufNesterov>(const Order<OnHost>& order) {
  return make_local<terse::Bmuf<Inner, terse::Block::nesterov>>(order, inner_momentum_sgd(order));
}
template <>
Made make<struct DiLoCo>(const Order<OnHost>& order) {
  return make_local<terse::DiLoCo<terse::Adam<>>>(order, inner_adam(order));
}
template <>
Made make<struct DiLoCoInt8>(const Order<OnHost>& order) {
  using Int8 = terse::Uniform<8, terse::Nearest, terse::Symmetric>;
  return make_local<terse::DiLoCo<terse::Adam<>, Int8, terse::Residual, terse::Ring>>(order,
                                                                                      inner_adam(order));
}

}  // namespace train
