// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/file_io.hpp"

// A checkpoint's file as it is read: its size and its header, verified.

namespace terse::checkpoint::detail {

inline constexpr std::size_t max_header = 100'000'000;  // the bound that other readers of the format set

/// A file to read, and its size.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& file)
      : file_(file),
        // Not to hang where a pipe stands in the file's place.
        in_(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    struct stat status {};
    if (fd() < 0 || ::fstat(fd(), &status) != 0) fail_errno(file_, "cannot open");
    if (!S_ISREG(status.st_mode)) fail(file_, "is not a regular file");
    bytes_ = static_cast<std::size_t>(status.st_size);
  }
  int fd() const noexcept { return in_.value(); }
  std::size_t bytes() const noexcept { return bytes_; }

  /// The text of a checkpoint's header, which matches its digest. From the file's start; the data come next. A `foreign`
  /// file, which terse need not have written, may have no digest.
  std::string header(bool foreign = false) const {
    std::uint64_t length = 0;
    if (bytes_ < sizeof length) fail(file_, "is too short to be one");
    read_all(file_, fd(), &length, sizeof length);
    if (length == 0 || length > bytes_ - sizeof length || length > max_header)
      fail(file_, "has a header of " + std::to_string(length) + " bytes in a file of " +
                      std::to_string(bytes_) + " bytes, which cannot be");
    std::string text(length, '\0');
    read_all(file_, fd(), text.data(), length);
    const std::size_t position = digest_position(text);
    if (position == text.npos && !foreign)
      fail(file_,
           "has no digest: it is damaged, or terse did not write it. checkpoint::File::read_foreign and "
           "map_foreign read safetensors files of other programs");
    if (position != text.npos && text.compare(position, digits, header_digest(text, position)) != 0)
      fail(file_, "is damaged: the header does not match its digest");
    return text;
  }

 private:
  const std::filesystem::path& file_;
  const Descriptor in_;
  std::size_t bytes_ = 0;
};

}  // namespace terse::checkpoint::detail
