// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../../tools/train/input_error.hpp"

namespace experiments {

using train::input_error;

struct Options {
  std::vector<std::string> names;  ///< of the experiments to make; none: all
  std::string only;                ///< what a row's name must contain
  std::uint64_t first_seed = 1, seeds = 3;
  std::string data, csv;
};

/// Prints what was asked for and returns nothing where that is help. Throws input_error for what is unknown, malformed or out
/// of range, and where the CSV file could not be written at the end.
std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const std::vector<std::string>& known);

}  // namespace experiments
