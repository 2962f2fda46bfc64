// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "marked_layout.hpp"
#include "terse/optimizer/dion.hpp"
#include "terse/optimizer/dion2.hpp"
#include "terse/optimizer/muon.hpp"

namespace train {

template <>
Made make<struct Muon>(const Order<OnHost>& order) {
  return made(order, terse::Muon<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()},
              hidden_matrices(order.layout));
}
/// A quarter of the rows.
template <>
Made make<struct Dion2>(const Order<OnHost>& order) {
  return made(order,
              terse::Dion2<>{.learning_rate = order.rate(),
                             .weight_decay = order.weight_decay(),
                             .hidden = {terse::MatrixScale::rms}},
              hidden_matrices(order.layout));
}
/// Whose steps along hidden matrices are not scaled to be as long as Adam's, and want rates of their own.
template <>
Made make<struct Dion>(const Order<OnHost>& order) {
  return made(order, terse::Dion<32>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()},
              hidden_matrices(order.layout, 32, 64));
}

}  // namespace train
