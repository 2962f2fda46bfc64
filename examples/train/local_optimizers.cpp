// SPDX-License-Identifier: Apache-2.0
#include "local.hpp"

namespace train {

template <class P>
std::unique_ptr<AnyOptimizer> make_local_optimizer(Optimizer kind, const Options& options,
                                                   std::uint64_t average_until, P& place,
                                                   const terse::Layout& layout) {
  using Inner = terse::MomentumSgd<>;
  const Inner inner = inner_momentum_sgd(options);
  if (is_swarm(kind)) return make_swarm_optimizer(kind, options, place, layout);
  switch (kind) {
    case Optimizer::slowmo:
      return make_local<terse::SlowMo<Inner>>(kind, options, 0, place, layout, inner);
    case Optimizer::bmuf_classical:
      return make_local<terse::Bmuf<Inner, terse::Block::classical>>(kind, options, 0, place, layout, inner);
    case Optimizer::bmuf_nesterov:
      return make_local<terse::Bmuf<Inner, terse::Block::nesterov>>(kind, options, 0, place, layout, inner);
    case Optimizer::diloco:
      return make_local<terse::DiLoCo<terse::Adam<>>>(kind, options, 0, place, layout, inner_adam(options));
    case Optimizer::streaming_diloco:
    case Optimizer::slowmo_sgp:
    case Optimizer::overlap_local_sgd:
    case Optimizer::cocod_sgd:
      return make_other_local_optimizer(kind, options, place, layout);
    default:
      return make_local<terse::LocalSgd<Inner>>(kind, options, average_until, place, layout, inner);
  }
}

template std::unique_ptr<AnyOptimizer> make_local_optimizer(Optimizer, const Options&, std::uint64_t, OnHost&,
                                                            const terse::Layout&);

}  // namespace train
