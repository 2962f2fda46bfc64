// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include "terse/checkpoint/replace_file.hpp"
#include "terse/core/error.hpp"

// Files of checkpoints: errors that name the file, and system calls that retry.

namespace terse::checkpoint::detail {

std::string about(const std::filesystem::path& file, const std::string& sentence);
[[noreturn]] void fail(const std::filesystem::path& file, const std::string& sentence);

/// Quotes a name from an untrusted file for a message: short, and free of control characters.
std::string quoted(const std::string& name);

/// Throws checkpoint_error with the text of errno.
[[noreturn]] void fail_errno(const std::filesystem::path& file, const std::string& sentence);

/// Runs `work`; adds the file's name to an error of the system.
template <class Work>
void naming(const std::filesystem::path& file, Work work) {
  try {
    work();
  } catch (const std::system_error& fault) {
    fail(file, fault.what());
  }
}

void read_all(const std::filesystem::path& file, int fd, void* data, std::size_t bytes);

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/file_io.ipp"
#endif
