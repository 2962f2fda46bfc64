// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "run.hpp"

namespace pipeline {

bool have_gnuplot();

/// Training loss against epochs and against what all stages have sent, means over the seeds. Throws train::input_error
/// where gnuplot or the file fails.
void write_plot(const Options& options, const std::vector<Run>& runs);

/// Runs `write(temporary)` for a file beside `path`, and renames that if all went well.
void replace_file(const std::string& path, const std::function<void(const std::string&)>& write);

}  // namespace pipeline
