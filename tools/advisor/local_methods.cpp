// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

namespace advise {

std::vector<Method> local_methods(int period) {
  using Inner = terse::MomentumSgd<>;
  const auto steps = static_cast<std::uint64_t>(period);
  return {method("local-sgd", "momentum-sgd", terse::LocalSgd<Inner>{.period = steps}, period, period),
          method("diloco", "adam", terse::DiLoCo<terse::Adam<>>{.period = steps}, period, period),
          method("overlap-local-sgd", "momentum-sgd", terse::OverlapLocalSgd<Inner>{.period = steps},
                 2 * period, period, terse::predict::Overlap::steps),
          method("swarm-sgd", "momentum-sgd", terse::SwarmSgd<Inner>{.schedule = {.period = steps}}, period,
                 period)};
}

}  // namespace advise
