// SPDX-License-Identifier: Apache-2.0
#include "any_pipeline.hpp"

#include <stdexcept>

#include "made_pipeline.hpp"

namespace pipeline {

std::unique_ptr<AnyPipeline> make_pipeline(const Coding& coding, const Settings& settings, Wire& wire,
                                           Model& stage) {
  for (const auto family :
       {make_direct, make_block_changes, make_row_changes, make_changes_of_other_memories, make_wide_blocks})
    if (Made made = family(coding, settings, wire, stage)) return made;
  throw std::invalid_argument(why_not(coding));
}

}  // namespace pipeline
