// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"
#include "terse/optimizer/dion2.hpp"
#include "terse/optimizer/lamb.hpp"
#include "terse/optimizer/lars.hpp"
#include "terse/optimizer/muon.hpp"
#include "terse/optimizer/sharded.hpp"
#include "terse/topology/star.hpp"

namespace golden {

void add_exact(std::vector<Row>& rows) {
  add(rows, "Adam", Adam<>{});
  add(rows, "Adam, decay, clipped", Adam<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Adam, bf16 and fp16", Adam<>{.weight_decay = 0.1F}, {.clip_norm = 5}, {2, 3},
      Numbers<bf16, fp16>{});
  add(rows, "Adam, Ring, decay, clipped", Adam<Ring>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Adam, Star, decay, clipped", Adam<Star>{.weight_decay = 0.1F, .topology = {.center = 1}},
      {.clip_norm = 5});
  add(rows, "MomentumSgd", MomentumSgd<>{});
  add(rows, "MomentumSgd, Nesterov, decay, clipped",
      MomentumSgd<>{.weight_decay = 0.1F, .momentum_correction = {.nesterov = true}}, {.clip_norm = 5});
  add(rows, "Lamb, decay, clipped", Lamb<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Lars, decay, clipped", Lars<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Muon, decay, clipped", Muon<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Dion2, decay, clipped", Dion2<>{.weight_decay = 0.1F}, {.clip_norm = 5});
  add(rows, "Muon, Polar Express, TopK, 16 bits",
      Muon<PolarExpress, TopK<>>{.hidden = {MatrixScale::shape}, .compressor = {{.ratio = 0.1F}}}, {}, {2, 3},
      Numbers<bf16, fp16>{});
  add(rows, "Sharded Adam", Sharded<Adam<>>{});
  add(rows, "Sharded Adam, 8 bits both ways",
      Sharded<Adam<>, Uniform<8>, GatherBy<Uniform<8>>>{{.weight_decay = 0.1F}}, {.clip_norm = 5});
  add(rows, "Sharded Muon, bf16 and fp16, cast",
      Sharded<Muon<>, GatherBy<Cast<bf16>>>{{.weight_decay = 0.1F}}, {.clip_norm = 5}, {2, 3},
      Numbers<bf16, fp16>{});
}

}  // namespace golden
