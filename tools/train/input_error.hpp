// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace train {

/// Something the user gave can't be used: an option's value, a file, a directory. `what()` is one clear line;
/// the program prints it and ends with exit code 2, if no other one is given.
class input_error : public std::runtime_error {
 public:
  explicit input_error(const std::string& line, int status = 2) : std::runtime_error(line), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

}  // namespace train
