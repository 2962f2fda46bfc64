// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace train {

/// Whether gnuplot can be started.
bool have_gnuplot();

/// Throws input_error where `path`, which `option` has named, is no name of a picture; nothing where that is empty.
void check_picture(const std::string& option, const std::string& path);
/// The same where it could not be drawn and written by now.
void check_drawing(const std::string& option, const std::string& path);

/// The SVG picture that gnuplot draws by a script, which sets no output. Throws input_error where gnuplot is missing or
/// fails, with what it says.
std::string draw(const std::string& script);

}  // namespace train
