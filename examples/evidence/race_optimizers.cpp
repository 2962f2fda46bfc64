// SPDX-License-Identifier: Apache-2.0

// The trainer's table of methods with those that race alone, which are compiled in a third of the time.

#include <fmt/format.h>

#include "../../tools/train/any_optimizer.hpp"
#include "../../tools/train/input_error.hpp"

namespace train {

template <>
Made make<struct Adam>(const Order<OnHost>&);
template <>
Made make<struct OneBitAdam>(const Order<OnHost>&);
template <>
Made make<struct ZeroOneAdam>(const Order<OnHost>&);
template <>
Made make<struct Lamb>(const Order<OnHost>&);
template <>
Made make<struct OneBitLamb>(const Order<OnHost>&);
template <>
Made make<struct DiLoCoInt8>(const Order<OnHost>&);
template <>
Made make<struct SparseLoCo>(const Order<OnHost>&);
template <>
Made make<struct PowerSgd>(const Order<OnHost>&);
template <>
Made make<struct Muon>(const Order<OnHost>&);
template <>
Made make<struct Dion>(const Order<OnHost>&);

/// All others.
template <class Tag, class P>
Made make(const Order<P>& order) {
  throw input_error(
      fmt::format("the race has no {}; add it to examples/evidence/race_optimizers.cpp", order.method.name));
}

// Parts of 1-bit Adam that its unit calls and the race doesn't have.
template <>
Made make<struct LayeredOneBitAdam>(const Order<OnHost>& order) {
  return make<void>(order);
}
template <>
Made make<struct OneBitAdamOverRing>(const Order<OnHost>& order) {
  return make<void>(order);
}
template <>
Made make<struct OneBitAdamOverAllGather>(const Order<OnHost>& order) {
  return make<void>(order);
}

}  // namespace train

#include "../../tools/train/method_table.hpp"
