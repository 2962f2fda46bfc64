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

// Files that are whole or not there. What the system refuses is a std::system_error that says what was tried and why it
// failed, but not which file: the caller knows what that is to the user.

namespace terse::checkpoint {

namespace detail {

[[noreturn]] inline void refused(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// An open file, closed when it goes.
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

/// Makes `directory`, an absolute path, and its missing ancestors, and makes them last.
void make_directories(const std::filesystem::path& directory);

void write_all(int fd, const void* data, std::size_t bytes);

/// An absolute path of what `file` stands for: links are followed, to a file that isn't there yet, too.
std::filesystem::path target_of(std::filesystem::path file);

/// Devices, pipes, and what this process prints to: nothing may be put in their place.
bool written_through(const std::filesystem::path& file);

Descriptor open_through(const std::filesystem::path& file);

/// A new file beside `target`, which is gone again unless it is renamed.
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

/// Runs `write(descriptor)` on a file beside `file`, flushes that to disk and renames it over `file`: so `file` is the old
/// one or the new one, never a part. A link stays, and what it points to is replaced. What is no regular file, such as a device or a pipe, and what this process's output goes to, is written to as it stands.
///
/// Throws std::system_error, without the file's name. `file` is then as it was; only if the directory itself can't be
/// flushed at the very end does the new one stand in its place. A pipe that nobody reads from is an error after 10 seconds.
void replace_file(const std::filesystem::path& file, const std::function<void(int)>& write);
/// The same with `contents` as what the file is to hold.
void replace_file(const std::filesystem::path& file, std::string_view contents);

/// Throws std::system_error where `replace_file` would fail by now: before hours of work for what can't be kept. Leaves
/// nothing behind.
void check_replaceable(const std::filesystem::path& file);

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/replace_file.ipp"
#endif
