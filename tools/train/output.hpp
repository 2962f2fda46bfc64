// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>
#include <string>

// What programs print and the files that they write at the end: see terse/checkpoint/replace_file.hpp for what becomes of
// links, devices and pipes. All throw input_error that names the file and the system's reason.

namespace train {

/// Throws where `write_output` could not write `path` by now, which `option` has named; nothing where that is empty.
void check_output(const std::string& option, const std::string& path);

/// The whole text, or the file stays as it was.
void write_output(const std::string& path, const std::string& text);

/// To the end, past buffers.
void print(std::FILE* out, const std::string& text);

/// One output after the other: what can't be written keeps nothing else from being, and `complain` hears why.
class Outputs {
 public:
  explicit Outputs(void (*complain)(const std::string&)) : complain_(complain) {}
  void operator()(const std::function<void()>& write);
  bool all_written() const { return all_written_; }

 private:
  void (*complain_)(const std::string&);
  bool all_written_ = true;
};

}  // namespace train
