// SPDX-License-Identifier: Apache-2.0

// The trainer's table of methods with those of `batches` and `stragglers`, which are compiled in half of the time.

#include <fmt/format.h>

#include "../../tools/train/any_optimizer.hpp"
#include "../../tools/train/input_error.hpp"

namespace train {

template <>
Made make<struct Adam>(const Order<OnHost>&);
template <>
Made make<struct MomentumSgd>(const Order<OnHost>&);
template <>
Made make<struct Lamb>(const Order<OnHost>&);
template <>
Made make<struct OneBitLamb>(const Order<OnHost>&);
template <>
Made make<struct LocalSgd>(const Order<OnHost>&);
template <>
Made make<struct StreamingDiLoCo>(const Order<OnHost>&);
template <>
Made make<struct NoLoCo>(const Order<OnHost>&);
template <>
Made make<struct OverlapLocalSgd>(const Order<OnHost>&);
template <>
Made make<struct CocodSgd>(const Order<OnHost>&);
template <>
Made make<struct SwarmSgd>(const Order<OnHost>&);
template <>
Made make<struct SwarmSgdLattice>(const Order<OnHost>&);
template <>
Made make<struct NonBlockingSwarmSgd>(const Order<OnHost>&);
template <>
Made make<struct AsyncSwarmSgd>(const Order<OnHost>&);
template <>
Made make<struct DmSgd>(const Order<OnHost>&);
template <>
Made make<struct DecentLaM>(const Order<OnHost>&);

/// All others.
template <class Tag, class P>
Made make(const Order<P>& order) {
  throw input_error(
      fmt::format("these experiments have no {}; add it to examples/evidence/perceptron_optimizers.cpp",
                  order.method.name));
}

}  // namespace train

#include "../../tools/train/method_table.hpp"
