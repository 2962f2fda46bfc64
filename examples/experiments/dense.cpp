// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"
#include "terse/optimizer/adam.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

namespace experiments {

Experiment dense() {
  Experiment experiment{"dense"};
  experiment.add("Adam", maker(terse::Adam<>{.learning_rate = 1e-3F}));
  experiment.add("momentum SGD", maker(terse::MomentumSgd<>{.learning_rate = 0.05F}));
  return experiment;
}

}  // namespace experiments
