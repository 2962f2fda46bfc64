// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"
#include "terse/optimizer/one_bit_lamb.hpp"
#include "terse/optimizer/zero_one_adam.hpp"
#include "terse/topology/star.hpp"

namespace golden {

void add_one_bit(std::vector<Row>& rows) {
  const FrozenVariance freeze{.freeze = AtStep{4}};
  add(rows, "OneBitAdam", OneBitAdam<>{.weight_decay = 0.1F, .preconditioner = freeze}, {.clip_norm = 5});
  add(rows, "OneBitAdam, when it settles",
      OneBitAdam<>{.preconditioner = {.freeze = VarianceRatio{0.5F, 3}}});
  add(rows, "OneBitAdam, Ring", OneBitAdam<Sign, FrozenVariance, Ring>{.preconditioner = freeze},
      {.clip_norm = 5});
  add(rows, "OneBitAdam, Star", OneBitAdam<Star>{.preconditioner = freeze});
  add(rows, "OneBitAdam, AllGather", OneBitAdam<Sign, FrozenVariance, AllGather>{.preconditioner = freeze});
  add(rows, "OneBitAdam, blocks, 16 bits",
      OneBitAdam<ScaledSign<MeanAbs, PerBlock<128>>>{.weight_decay = 0.1F, .preconditioner = freeze},
      {.clip_norm = 5}, {2, 3}, Numbers<bf16, bf16>{});
  add(rows, "OneBitLamb", OneBitLamb<>{.weight_decay = 0.1F, .preconditioner = freeze}, {.clip_norm = 5});
  add(rows, "OneBitLamb, Ring", OneBitLamb<Sign, Ring>{.preconditioner = freeze});
  add(rows, "ZeroOneAdam", ZeroOneAdam<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "ZeroOneAdam, AllGather", ZeroOneAdam<Sign, AllGather>{});
}

}  // namespace golden
