// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "terse/checkpoint/file_io.hpp"

// A checkpoint's file, open for reading, with its verified size and header.

namespace terse::checkpoint::detail {

inline constexpr std::size_t max_header = 100'000'000;  // the limit that other readers of the format have

/// A file to read, and its size.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& file);
  int fd() const noexcept { return in_.value(); }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Returns the text of a checkpoint's header, which matches its digest. Reads from the file's start; the data come
  /// next. A `foreign` file, which may be from other programs, may have no digest.
  std::string header(bool foreign = false) const;

 private:
  const std::filesystem::path& file_;
  const Descriptor in_;
  std::size_t bytes_ = 0;
};

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/open_file.ipp"
#endif
