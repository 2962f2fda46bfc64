// SPDX-License-Identifier: Apache-2.0
#include "any_optimizer.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "transports.hpp"

namespace train {

template <class T>
std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer kind, const Options& options, T& transport,
                                                   const terse::Layout& layout) {
  const auto weight_decay = static_cast<float>(options.weight_decay);
  if (kind == Optimizer::momentum_sgd)
    return std::make_unique<TheOptimizer<terse::MomentumSgd, T>>(
        terse::MomentumSgd{.learning_rate = static_cast<float>(options.sgd_learning_rate),
                           .weight_decay = weight_decay},
        transport, layout, terse_options(options));
  return std::make_unique<TheOptimizer<terse::Adam, T>>(
      terse::Adam{.learning_rate = static_cast<float>(options.learning_rate), .weight_decay = weight_decay},
      transport, layout, terse_options(options));
}

template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, MeteredThreads&,
                                                            const terse::Layout&);
#ifdef TERSE_HAVE_MPI
template std::unique_ptr<AnyOptimizer> make_dense_optimizer(Optimizer, const Options&, MeteredMpi&,
                                                            const terse::Layout&);
#endif

}  // namespace train
