// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../tools/train/any_optimizer.hpp"

/// Makes swarm-sgd-non-blocking or async-swarm-sgd with lattice packets of 8 bits.
train::Made lattice_swarm(const train::Order<train::OnHost>& order);
