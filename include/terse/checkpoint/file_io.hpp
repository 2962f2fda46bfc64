// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "terse/core/error.hpp"

// Files that are whole or not there: system calls that retry, and errors that name the file.

namespace terse::checkpoint::detail {

[[noreturn]] inline void fail(const std::filesystem::path& file, const std::string& sentence) {
  throw checkpoint_error("checkpoint '" + file.string() + "': " + sentence);
}

/// Adds what errno says.
[[noreturn]] inline void fail_errno(const std::filesystem::path& file, const std::string& sentence) {
  fail(file, sentence + ": " + std::generic_category().message(errno));
}

/// An open file, closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int value() const noexcept { return value_; }
  bool close() noexcept { return value_ < 0 || ::close(std::exchange(value_, -1)) == 0; }

 private:
  int value_;
};

inline int open_directory(const std::filesystem::path& file, const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno(file, "cannot open its directory");
  return fd;
}

inline void sync(const std::filesystem::path& file, int fd) {
  while (::fsync(fd) != 0) {
    if (errno == EINVAL) return;  // some file systems cannot flush directories
    if (errno != EINTR) fail_errno(file, "cannot flush to disk");
  }
}

/// Makes `directory`, an absolute path, and its missing ancestors, and makes them last.
inline void make_directories(const std::filesystem::path& file, const std::filesystem::path& directory) {
  std::error_code ignored;
  if (std::filesystem::exists(directory, ignored) || directory == directory.parent_path()) return;
  make_directories(file, directory.parent_path());
  if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) fail_errno(file, "cannot make its directory");
  sync(file, Descriptor(open_directory(file, directory.parent_path())).value());
}

inline void write_all(const std::filesystem::path& file, int fd, const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd, next, std::min(bytes, std::size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail_errno(file, "cannot write");
    next += done;
    bytes -= static_cast<std::size_t>(done);
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
