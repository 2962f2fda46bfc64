// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/open_file.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE OpenFile::OpenFile(const std::filesystem::path& file)
    : file_(file),
      // O_NONBLOCK, so that a pipe in the file's place doesn't block.
      in_(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  struct stat status {};
  if (fd() < 0 || ::fstat(fd(), &status) != 0) fail_errno(file_, "cannot open");
  if (!S_ISREG(status.st_mode)) fail(file_, "is not a regular file");
  bytes_ = static_cast<std::size_t>(status.st_size);
}

TERSE_CORE std::string OpenFile::header(bool foreign) const {
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

}  // namespace terse::checkpoint::detail
