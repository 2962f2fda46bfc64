// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "terse/core/layout.hpp"

namespace advise {

struct Options {
  terse::Layout layout;
  double gradient = 0;  // s
  struct Given {
    double latency, bandwidth;  // s, bytes/s
  };
  std::optional<Given> network;
  int ranks = 0;  // threads, where there is no mpirun; 0: 2
  int period = 8;
  terse::index_t rehearsed = terse::index_t{4} << 20;  // elements
  std::vector<std::string> methods;                    // none: all
  bool json = false;
  bool help = false;
};

/// What is wrong with the command line, in a sentence.
class input_error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

extern const char* const usage;
Options parse(int argc, char** argv);

/// The same segments with at most about `elements` elements: their first dimensions are cut.
terse::Layout shrunk(const terse::Layout& layout, terse::index_t elements);

}  // namespace advise
