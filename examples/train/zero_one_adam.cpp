// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/zero_one_adam.hpp"
#include "any_optimizer.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_zero_one_adam(const Options& options, const Stages& stages, P& place,
                                                 const terse::Layout& layout) {
  using Recipe = terse::ZeroOneAdam<>;
  const Recipe recipe{.learning_rate = static_cast<float>(options.learning_rate),
                      .weight_decay = static_cast<float>(options.weight_decay),
                      .update_clip = static_cast<float>(options.update_clip),
                      .variance_freeze_step = stages.freeze,
                      .variance_updates = static_cast<std::uint64_t>(options.variance_updates),
                      .local_interval_steps = stages.local_interval,
                      .most_local_steps = static_cast<std::uint64_t>(options.most_local_steps)};
  return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
}

template std::unique_ptr<AnyOptimizer> make_zero_one_adam(const Options&, const Stages&, OnHost&,
                                                          const terse::Layout&);

}  // namespace train
