// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/qg_dm_sgd.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_gossip_optimizer(Optimizer kind, const Options& options, P& place,
                                                    const terse::Layout& layout) {
  switch (kind) {
    case Optimizer::d_sgd:
      return make_mixing<terse::DSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::awc_d_sgd:
      return make_mixing<terse::AwcDSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::cta_d_sgd:
      return make_mixing<terse::CtaDSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::dm_sgd:
      return make_mixing<terse::DmSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::da_dm_sgd:
      return make_mixing<terse::DaDmSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::awc_dm_sgd:
      return make_mixing<terse::AwcDmSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::qg_dm_sgd:
      return make_mixing<terse::QgDmSgd<OnAnyGraph>>(kind, options, place, layout);
    case Optimizer::choco_sgd:
    case Optimizer::deep_squeeze:
    case Optimizer::dcd_sgd:
    case Optimizer::beer:
    case Optimizer::moniqua_sgd:
      return make_compressed_gossip_optimizer(kind, options, place, layout);
    default:
      return make_corrected_gossip_optimizer(kind, options, place, layout);
  }
}

template std::unique_ptr<AnyOptimizer> make_gossip_optimizer(Optimizer, const Options&, OnHost&,
                                                             const terse::Layout&);

}  // namespace train
