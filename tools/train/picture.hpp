// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// Pictures are drawn by scripts/draw.py, which describes the JSON that it reads.

namespace train {

/// Throws input_error if `path`, which `option` has named, is not the name of an SVG file; nothing if it is empty.
void check_picture(const std::string& option, const std::string& path);
/// Throws input_error if that file could not be drawn and written by now.
void check_drawing(const std::string& option, const std::string& path);

/// Draws a picture and writes its file. Throws input_error, which names the file, if Python is missing, there is nothing to draw, or
/// the file can't be written.
void write_picture(const std::string& path, const nlohmann::ordered_json& picture);

}  // namespace train
