// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/manifest.hpp"
#include "terse/checkpoint/replace_file.hpp"

namespace terse::checkpoint {

/// Small files by name.
using Texts = std::map<std::string, std::string>;

/// The files that a rank adds to a checkpoint during `write`.
class Draft {
 public:
  explicit Draft(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Returns the path for a file of that name, which no other rank may use.
  std::filesystem::path file(const std::string& name);
  /// Writes a small file.
  void write(const std::string& name, const std::string& contents);
  const std::set<std::string>& names() const noexcept { return names_; }

 private:
  std::filesystem::path folder_;
  std::set<std::string> names_;
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/draft.ipp"
#endif
