// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/power_sgd.hpp"
#include "terse/optimizer/quantized_sgd.hpp"
#include "transports.hpp"

namespace train {

template <class T>
std::unique_ptr<AnyOptimizer> make_other_optimizer(Optimizer kind, const Options& options, T& transport,
                                                   const terse::Layout& layout) {
  const auto make = [&]<class Recipe>(const Recipe& recipe) -> std::unique_ptr<AnyOptimizer> {
    return std::make_unique<TheOptimizer<Recipe, T>>(recipe, transport, layout, terse_options(options));
  };
  const auto rate = static_cast<float>(rate_of(options, kind).rate);
  const auto weight_decay = static_cast<float>(options.weight_decay);
  if (kind == Optimizer::power_sgd)
    return make(terse::PowerSgd<2>{.learning_rate = rate, .weight_decay = weight_decay});
  return make(terse::QuantizedSgd<>{.learning_rate = rate, .weight_decay = weight_decay});
}

template std::unique_ptr<AnyOptimizer> make_other_optimizer(Optimizer, const Options&, MeteredThreads&,
                                                            const terse::Layout&);
#ifdef TERSE_HAVE_MPI
template std::unique_ptr<AnyOptimizer> make_other_optimizer(Optimizer, const Options&, MeteredMpi&,
                                                            const terse::Layout&);
#endif

}  // namespace train
