// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"
#include "terse/compressor/cast.hpp"
#include "terse/compressor/mean_over_senders.hpp"
#include "terse/optimizer/local/cocktail_sgd.hpp"
#include "terse/optimizer/local/distro.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/noloco.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/sparse_loco.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"
#include "terse/topology/median_clip.hpp"
#include "terse/topology/radial.hpp"

namespace golden {

void add_local(std::vector<Row>& rows) {
  add(rows, "LocalSgd", LocalSgd<MomentumSgd<>>{.period = 3});
  add(rows, "LocalSgd, Adam, signs", LocalSgd<Adam<>, Sign, Residual>{.period = 2});
  add(rows, "SlowMo", SlowMo<MomentumSgd<>>{.period = 3});
  add(rows, "SlowMo over SGP", SlowMo<StochasticGradientPush<>, Inside::together>{.period = 3});
  add(rows, "DiLoCo", DiLoCo<Adam<>>{.period = 3});
  add(rows, "OverlapLocalSgd", OverlapLocalSgd<MomentumSgd<>>{.period = 3});
  add(rows, "CocodSgd", CocodSgd<MomentumSgd<>>{.period = 3});
  // One fragment under way at a time, and none in the end, so that the order of packets is certain.
  add(rows, "StreamingDiLoCo", StreamingDiLoCo<Adam<>>{.period = 4, .schedule = {.count = 2, .delay = 1}});
  add(rows, "StreamingDiLoCo, 4 bits",
      StreamingDiLoCo<MomentumSgd<>, Cast<e3m0, MaxAbs>>{.period = 6, .schedule = {.count = 3, .delay = 1}});
  add(rows, "SparseLoCo", SparseLoCo<MomentumSgd<>>{.period = 3});
  add(rows, "SparseLoCo, over senders, clipped",
      SparseLoCo<MomentumSgd<>, MeanOverSenders<Tiles<>>, Residual, Gathered<MedianClip>>{.period = 3}, {},
      {3});
  add(rows, "DiLoCo, radial", DiLoCo<MomentumSgd<>, Gathered<Radial<>>>{.period = 3}, {}, {2, 3});
  add(rows, "CocktailSgd", CocktailSgd<MomentumSgd<>>{.period = 4});
  add(rows, "DisTrO", DisTrO<>{.weight_decay = 0.1F});
  add(rows, "NoLoCo", NoLoCo<MomentumSgd<>>{.period = 3});
  add(rows, "SwarmSgd", SwarmSgd<MomentumSgd<>>{}, {}, {2, 4});
}

}  // namespace golden
