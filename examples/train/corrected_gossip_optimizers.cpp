// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/graph/lazy.hpp"
#include "terse/graph/push_sum.hpp"
#include "terse/optimizer/d2.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/gradient_tracking.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_corrected_gossip_optimizer(Optimizer kind, const Options& options,
                                                              P& place, const terse::Layout& layout) {
  switch (kind) {
    case Optimizer::decentlam:
      return make_mixing<terse::DecentLaM<OnFixedSymmetricGraph>>(kind, options, place, layout);
    case Optimizer::momentum_consensus:
      return make_mixing<terse::MomentumConsensus<OnFixedSymmetricGraph>>(kind, options, place, layout);
    case Optimizer::d2:
      return make_mixing<terse::D2<OnFixedSymmetricGraph>>(kind, options, place, layout);
    case Optimizer::d2_dm_sgd:
      return make_mixing<terse::D2DmSgd<OnFixedSymmetricGraph>>(kind, options, place, layout);
    case Optimizer::gradient_tracking:
      return make_mixing<terse::GradientTracking<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::momentum_tracking:
      return make_mixing<terse::MomentumTracking<OnAnyGraph>>(kind, options, place, layout);
    default:
      return make_mixing<terse::StochasticGradientPush<KeepsMean>>(kind, options, place, layout);
  }
}

template std::unique_ptr<AnyOptimizer> make_corrected_gossip_optimizer(Optimizer, const Options&, OnHost&,
                                                                       const terse::Layout&);

}  // namespace train
