// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "local.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_other_local_optimizer(Optimizer kind, const Options& options, P& place,
                                                         const terse::Layout& layout) {
  using Inner = terse::MomentumSgd<>;
  using Push = terse::StochasticGradientPush<Even>;
  const Inner inner = inner_momentum_sgd(options);
  switch (kind) {
    case Optimizer::slowmo_sgp:
      return make_local<terse::SlowMo<Push, terse::Inside::together>>(kind, options, 0, place, layout,
                                                                      mixing_recipe<Push>(kind, options));
    case Optimizer::streaming_diloco:
      return make_local<terse::StreamingDiLoCo<terse::Adam<>>>(kind, options, 0, place, layout,
                                                               inner_adam(options));
    case Optimizer::cocod_sgd:
      return make_local<terse::CocodSgd<Inner>>(kind, options, 0, place, layout, inner);
    default:
      return make_local<terse::OverlapLocalSgd<Inner>>(kind, options, 0, place, layout, inner);
  }
}

template std::unique_ptr<AnyOptimizer> make_other_local_optimizer(Optimizer, const Options&, OnHost&,
                                                                  const terse::Layout&);

}  // namespace train
