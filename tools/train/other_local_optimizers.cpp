// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "local.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

namespace train {

using Inner = terse::MomentumSgd<>;

template <>
Made make<struct SlowMoPush>(const Order<OnHost>& order) {
  using Push = terse::StochasticGradientPush<Even>;
  return make_local<terse::SlowMo<Push, terse::Inside::together>>(order, mixing_recipe<Push>(order));
}
template <>
Made make<struct StreamingDiLoCo>(const Order<OnHost>& order) {
  return make_local<terse::StreamingDiLoCo<terse::Adam<>>>(order, inner_adam(order));
}
template <>
Made make<struct OverlapLocalSgd>(const Order<OnHost>& order) {
  return make_local<terse::OverlapLocalSgd<Inner>>(order, inner_momentum_sgd(order));
}
template <>
Made make<struct CocodSgd>(const Order<OnHost>& order) {
  return make_local<terse::CocodSgd<Inner>>(order, inner_momentum_sgd(order));
}

}  // namespace train
