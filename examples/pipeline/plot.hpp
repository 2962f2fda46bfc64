// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "run.hpp"

namespace pipeline {

/// Training loss against epochs and against what all stages have sent, means over the seeds. Throws train::input_error
/// if it can't be drawn or written.
void write_plot(const Options& options, const std::vector<Run>& runs);

}  // namespace pipeline
