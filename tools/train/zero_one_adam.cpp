// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/zero_one_adam.hpp"
#include "any_optimizer.hpp"

namespace train {

template <>
Made make<struct ZeroOneAdam>(const Order<OnHost>& order) {
  const Options& options = order.options;
  return made(order,
              terse::ZeroOneAdam<>{.learning_rate = order.rate(),
                                   .weight_decay = order.weight_decay(),
                                   .update_clip = static_cast<float>(options.update_clip),
                                   .variance_freeze_step = order.stages.freeze,
                                   .variance_updates = static_cast<std::uint64_t>(options.variance_updates),
                                   .local_interval_steps = order.stages.local_interval,
                                   .most_local_steps = static_cast<std::uint64_t>(options.most_local_steps)});
}

}  // namespace train
