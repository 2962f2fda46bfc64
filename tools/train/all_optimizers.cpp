// SPDX-License-Identifier: Apache-2.0
#include "method_table.hpp"
#include "trainer.hpp"

namespace train {

const Program program = Program::train;  // adam_alone.cpp says otherwise

}  // namespace train
