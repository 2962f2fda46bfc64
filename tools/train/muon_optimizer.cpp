// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/muon.hpp"

namespace train {

/// To which all matrices but the last layer's are hidden ones.
template <>
Made make<struct Muon>(const Order<OnHost>& order) {
  terse::Layout marked;
  for (terse::Segment segment : order.layout.segments()) {
    segment.hidden = segment.shape.size() >= 2 && segment.name != "last.weight";
    marked.add(segment);
  }
  return made(order, terse::Muon<>{.learning_rate = order.rate(), .weight_decay = order.weight_decay()},
              marked);
}

}  // namespace train
