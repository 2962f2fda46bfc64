// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "../../tools/train/input_error.hpp"
#include "methods.hpp"

namespace bias {

using train::input_error;

/// The command line, checked. Defaults of the two problems differ, and are in place here.
struct Options {
  std::string problem = "two-node";  ///< or "regression"
  std::string graph = "mesh";        ///< a name of named_graphs, or "all"
  int ranks = 8;
  std::uint64_t seed = 1;
  Settings settings;
  std::string json, csv, plot;  ///< files to write, or empty
};

/// Writes the text of `--help` or `--version` to `out` and returns nothing where that was asked for. Throws
/// input_error for whatever is unknown, malformed, out of range or at odds, and where an output could not be
/// written at the end.
std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out = stdout);

}  // namespace bias
