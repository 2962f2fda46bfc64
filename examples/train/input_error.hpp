// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace train {

/// Something the user gave can't be used: an option's value, a file, a directory. `what()` is one clear line;
/// the program prints it and ends with exit code 2.
class input_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace train
