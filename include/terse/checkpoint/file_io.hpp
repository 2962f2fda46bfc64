// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include "terse/checkpoint/replace_file.hpp"
#include "terse/core/error.hpp"

// Files of checkpoints: errors that name the file, and system calls that retry.

namespace terse::checkpoint::detail {

inline std::string about(const std::filesystem::path& file, const std::string& sentence) {
  return "checkpoint '" + file.string() + "': " + sentence;
}
[[noreturn]] inline void fail(const std::filesystem::path& file, const std::string& sentence) {
  throw checkpoint_error(about(file, sentence));
}

/// Adds what errno says.
[[noreturn]] inline void fail_errno(const std::filesystem::path& file, const std::string& sentence) {
  fail(file, sentence + ": " + std::generic_category().message(errno));
}

/// Says which file it was that the system refused.
template <class Work>
void naming(const std::filesystem::path& file, Work work) {
  try {
    work();
  } catch (const std::system_error& fault) {
    fail(file, fault.what());
  }
}

inline void read_all(const std::filesystem::path& file, int fd, void* data, std::size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::read(fd, next, std::min(bytes, std::size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno(file, "cannot read");
    if (done == 0) fail(file, "became shorter while it was read");
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

}  // namespace terse::checkpoint::detail
