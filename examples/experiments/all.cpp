// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"

namespace experiments {

std::vector<Experiment> all_experiments() {
  return {dense(), demo(), streaming(), sparse_loco(), sparse_loco_long(), muon(), muloco(), dion(),
          wide(),  lion(), ef21(),      bits(),        noloco(),           rings()};
}

}  // namespace experiments
