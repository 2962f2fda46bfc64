// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/qg_dm_sgd.hpp"

namespace train {

template <>
Made make<struct DSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::DSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct AwcDSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::AwcDSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct CtaDSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::CtaDSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct DmSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::DmSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct DaDmSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::DaDmSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct AwcDmSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::AwcDmSgd<OnAnyGraph>>(order);
}
template <>
Made make<struct QgDmSgd>(const Order<OnHost>& order) {
  return make_mixing<terse::QgDmSgd<OnAnyGraph>>(order);
}

}  // namespace train
