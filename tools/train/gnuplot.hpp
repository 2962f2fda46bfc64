// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace train {

/// Whether gnuplot can be started.
bool have_gnuplot();

/// The SVG picture that gnuplot draws by a script, which sets no output. Throws input_error where gnuplot is missing or
/// fails, with what it says.
std::string draw(const std::string& script);

}  // namespace train
