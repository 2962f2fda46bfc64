// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "experiment.hpp"

// Each in the unit of its name.

namespace experiments {

Experiment dense();
Experiment demo();
Experiment streaming();
Experiment sparse_loco();
Experiment sparse_loco_long();
Experiment muon();
Experiment muloco();
Experiment dion();
Experiment wide();
Experiment lion();
Experiment ef21();
Experiment bits();
Experiment noloco();
Experiment rings();

}  // namespace experiments
