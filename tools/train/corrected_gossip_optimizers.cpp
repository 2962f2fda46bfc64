// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/graph/lazy.hpp"
#include "terse/graph/push_sum.hpp"
#include "terse/optimizer/d2.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/gradient_tracking.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

namespace train {

template <>
Made make<struct DecentLaM>(const Order<OnHost>& order) {
  return make_mixing<terse::DecentLaM<OnFixedSymmetricGraph>>(order);
}
template <>
Made make<struct MomentumConsensus>(const Order<OnHost>& order) {
  return make_mixing<terse::MomentumConsensus<OnFixedSymmetricGraph>>(order);
}
template <>
Made make<struct D2>(const Order<OnHost>& order) {
  return make_mixing<terse::D2<OnFixedSymmetricGraph>>(order);
}
template <>
Made make<struct D2DmSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::D2DmSgd<OnFixedSymmetricGraph>>(order);
}
template <>
Made make<struct GradientTracking>(const Order<OnHost>& order) {
  return make_mixing<terse::GradientTracking<OnAnyGraph>>(order);
}
template <>
Made make<struct MomentumTracking>(const Order<OnHost>& order) {
  return make_mixing<terse::MomentumTracking<OnAnyGraph>>(order);
}
template <>
Made make<struct StochasticGradientPush>(const Order<OnHost>& order) {
  return make_mixing<terse::StochasticGradientPush<KeepsMean>>(order);
}

}  // namespace train
