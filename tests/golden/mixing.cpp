// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"
#include "terse/optimizer/compressed_gossip.hpp"
#include "terse/optimizer/d2.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/gradient_tracking.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/moniqua_sgd.hpp"
#include "terse/optimizer/qg_dm_sgd.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

namespace golden {

void add_mixing(std::vector<Row>& rows) {
  add(rows, "DSgd", DSgd<>{.weight_decay = 0.1F});
  add(rows, "DmSgd, 16 bits", DmSgd<>{}, {}, {2, 3}, Numbers<bf16, bf16>{});
  add(rows, "DaDmSgd", DaDmSgd<>{});
  add(rows, "AwcDmSgd", AwcDmSgd<>{.weight_decay = 0.1F});
  add(rows, "DecentLaM", DecentLaM<>{.weight_decay = 0.1F});
  add(rows, "QgDmSgd", QgDmSgd<>{});
  add(rows, "D2", D2<>{});
  add(rows, "GradientTracking", GradientTracking<>{});
  add(rows, "MomentumConsensus", MomentumConsensus<>{});
  add(rows, "StochasticGradientPush", StochasticGradientPush<>{});
  add(rows, "ChocoSgd", ChocoSgd<TopK<>>{.compressor = {.selection = {.ratio = 0.05}}});
  add(rows, "DeepSqueeze", DeepSqueeze<Sign>{});
  add(rows, "Beer", Beer<ScaledSign<MeanAbs>>{});
  add(rows, "MoniquaSgd", MoniquaSgd<>{});
}

}  // namespace golden
