// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"
#include "terse/graph/graphs.hpp"
#include "terse/optimizer/compressed_gossip.hpp"
#include "terse/optimizer/dm_sgd.hpp"

namespace advise {

std::vector<Method> gossip_methods() {
  using terse::Mixing;
  return {method("dm-sgd/ring", "momentum-sgd", terse::DmSgd<Mixing<terse::graph::Ring>>{}),
          method("dm-sgd/exponential", "momentum-sgd",
                 terse::DmSgd<Mixing<terse::graph::SymmetricExponential>>{}),
          method("dm-sgd/one-peer", "momentum-sgd", terse::DmSgd<Mixing<terse::graph::OnePeerExponential>>{}),
          method("choco-sgd/ring", "momentum-sgd",
                 terse::ChocoSgd<Mixing<terse::graph::Ring>, terse::MomentumDirection>{}, 3)};
}

}  // namespace advise
