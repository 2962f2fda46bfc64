// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

// Functions that write files completely or not at all. Errors of the system are a std::system_error with the
// operation and the reason. They lack the file's name, since only the caller knows the file's purpose.

namespace terse::checkpoint {

namespace detail {

[[noreturn]] inline void refused(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// An open file, closed on destruction.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() { close(); }
  int value() const noexcept { return value_; }
  bool close() noexcept { return value_ < 0 || ::close(std::exchange(value_, -1)) == 0; }

 private:
  int value_;
};

void sync(int fd);
void sync_directory(const std::filesystem::path& directory);

/// Makes `directory`, an absolute path, and its missing ancestors durably.
void make_directories(const std::filesystem::path& directory);

void write_all(int fd, const void* data, std::size_t bytes);

/// Returns the absolute path that `file` refers to. Follows links, even to a file that doesn't exist yet.
std::filesystem::path target_of(std::filesystem::path file);

/// Checks whether a file must be written in place: devices, pipes, and the outputs of this process can't be replaced.
bool written_through(const std::filesystem::path& file);

Descriptor open_through(const std::filesystem::path& file);

/// A new file next to `target`, removed on destruction unless it is renamed.
class Partial {
 public:
  explicit Partial(const std::filesystem::path& target);
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;
  ~Partial() {
    if (fd_ >= 0) ::close(fd_);
    if (!file_.empty()) ::unlink(file_.c_str());
  }

  int fd() const { return fd_; }
  void become_target();

 private:
  std::filesystem::path target_, file_;
  int fd_ = -1;
};

}  // namespace detail

/// Runs `write(descriptor)` on a file next to `file`, flushes it to disk and renames it over `file`. So `file` is the
/// old or the new one, never a partial one. If `file` is a link, the link stays and its target is replaced. Files
/// that are not regular, such as devices and pipes, and outputs of this process are written in place.
///
/// Throws std::system_error, without the file's name. `file` is then unchanged, unless only the final flush of the
/// directory fails: then it is the new file. A pipe without a reader is an error after 10 seconds.
void replace_file(const std::filesystem::path& file, const std::function<void(int)>& write);
/// Replaces the contents of `file` with `contents`, as above.
void replace_file(const std::filesystem::path& file, std::string_view contents);

/// Throws std::system_error if `replace_file` would fail now: call it before hours of work whose result must be kept.
/// Leaves no files.
void check_replaceable(const std::filesystem::path& file);

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/replace_file.ipp"
#endif
