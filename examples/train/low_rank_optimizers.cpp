// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/power_sgd.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_low_rank_optimizer(const Options& options, P& place,
                                                      const terse::Layout& layout) {
  const auto rate = static_cast<float>(rate_of(options, Optimizer::power_sgd).rate);
  const auto weight_decay = static_cast<float>(options.weight_decay);
  return std::make_unique<TheOptimizer<terse::PowerSgd<2>, P>>(
      terse::PowerSgd<2>{.learning_rate = rate,
                         .weight_decay = weight_decay,
                         .momentum_correction = {.momentum = static_cast<float>(options.momentum)}},
      place, layout, terse_options(options));
}

template std::unique_ptr<AnyOptimizer> make_low_rank_optimizer(const Options&, OnHost&, const terse::Layout&);

}  // namespace train
