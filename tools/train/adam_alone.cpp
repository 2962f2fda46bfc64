// SPDX-License-Identifier: Apache-2.0

// In place of the other units: the trainer with the optimizers of the quickstart alone, which is compiled in a fifth of
// the time.

#include <fmt/format.h>

#include "any_optimizer.hpp"
#include "input_error.hpp"
#include "trainer.hpp"

namespace train {

const Program program = Program::quickstart_trainer;

template <>
Made make<struct Adam>(const Order<OnHost>&);
template <>
Made make<struct MomentumSgd>(const Order<OnHost>&);
template <>
Made make<struct OneBitAdam>(const Order<OnHost>&);
template <>
Made make<struct LayeredOneBitAdam>(const Order<OnHost>&) {
  throw input_error("--layers: the quickstart's trainer has signs alone. Build tools/train");
}

/// All others.
template <class Tag, class P>
Made make(const Order<P>& order) {
  throw input_error(fmt::format(
      "--optimizers: the quickstart's trainer has adam, momentum-sgd and one-bit-adam alone. Build "
      "tools/train for {}",
      order.method.name));
}

}  // namespace train

#include "method_table.hpp"
