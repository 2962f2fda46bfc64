// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/lamb.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_lamb_optimizer(Optimizer kind, const Options& options,
                                                  std::uint64_t freeze, P& place,
                                                  const terse::Layout& layout) {
  const auto make = [&]<class Recipe>(const Recipe& recipe) -> std::unique_ptr<AnyOptimizer> {
    return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
  };
  const auto rate = static_cast<float>(rate_of(options, kind).rate);
  const auto weight_decay = static_cast<float>(options.weight_decay);
  if (kind == Optimizer::one_bit_lamb)
    return make(terse::OneBitLamb<>{
        .learning_rate = rate,
        .weight_decay = weight_decay,
        .preconditioner = {terse::AtStep{freeze}, static_cast<float>(options.update_clip)}});
  return make(terse::Lamb<>{.learning_rate = rate, .weight_decay = weight_decay});
}

template std::unique_ptr<AnyOptimizer> make_lamb_optimizer(Optimizer, const Options&, std::uint64_t, OnHost&,
                                                           const terse::Layout&);

}  // namespace train
