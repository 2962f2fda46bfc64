// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "terse/checkpoint/replace_file.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE void sync(int fd) {
  while (::fsync(fd) != 0) {
    if (errno == EINVAL || errno == EROFS) return;  // pipes, devices, and some file systems' directories
    if (errno != EINTR) refused("cannot flush to disk");
  }
}

TERSE_CORE void sync_directory(const std::filesystem::path& directory) {
  const Descriptor held(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (held.value() < 0) refused("cannot open its directory");
  sync(held.value());
}

TERSE_CORE void make_directories(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (std::filesystem::exists(directory, ignored) || directory == directory.parent_path()) return;
  make_directories(directory.parent_path());
  if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) refused("cannot make its directory");
  sync_directory(directory.parent_path());
}

TERSE_CORE void write_all(int fd, const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd, next, std::min(bytes, std::size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) refused("cannot write");
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

TERSE_CORE std::filesystem::path target_of(std::filesystem::path file) {
  std::error_code code, ignored;
  for (int links = 0; std::filesystem::is_symlink(file, ignored); ++links) {
    if (links == 40) errno = ELOOP, refused("cannot follow its links");
    file = file.parent_path() / std::filesystem::read_symlink(file, ignored);
  }
  file = std::filesystem::absolute(file, code);
  if (code) throw std::system_error(code, "cannot find its directory");
  return file;
}

TERSE_CORE bool written_through(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) return false;
  if (!S_ISREG(status.st_mode)) return true;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (::fstat(fd, &own) == 0 && own.st_dev == status.st_dev && own.st_ino == status.st_ino) return true;
  }
  return false;
}

TERSE_CORE Descriptor open_through(const std::filesystem::path& file) {
  int fd = -1;
  for (int waits = 0; waits <= 100; ++waits) {
    fd = ::open(file.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 || errno != ENXIO) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a pipe whose reader may still come
  }
  if (fd < 0) refused("cannot open");
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return Descriptor(fd);
}

TERSE_CORE Partial::Partial(const std::filesystem::path& target) : target_(target) {
  static std::atomic<unsigned> counter{0};
  // A crashed process may have had this id and left its partial file: that name is skipped.
  int fd = -1;
  do {
    file_ = target;
    file_ += ".partial" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) refused("cannot make a temporary file in its folder");
  fd_ = fd;
}

TERSE_CORE void Partial::become_target() {
  sync(fd_);
  if (::close(std::exchange(fd_, -1)) != 0) refused("cannot write");
  if (::rename(file_.c_str(), target_.c_str()) != 0) refused("cannot be replaced");
  file_.clear();
  sync_directory(target_.parent_path());
}

}  // namespace terse::checkpoint::detail

namespace terse::checkpoint {

TERSE_CORE void replace_file(const std::filesystem::path& file, const std::function<void(int)>& write) {
  if (detail::written_through(file)) {
    detail::Descriptor through = detail::open_through(file);
    write(through.value());
    detail::sync(through.value());
    if (!through.close()) detail::refused("cannot write");
    return;
  }
  const std::filesystem::path target = detail::target_of(file);
  detail::Partial partial(target);
  write(partial.fd());
  partial.become_target();
}

TERSE_CORE void replace_file(const std::filesystem::path& file, std::string_view contents) {
  replace_file(file, [&](int fd) { detail::write_all(fd, contents.data(), contents.size()); });
}

TERSE_CORE void check_replaceable(const std::filesystem::path& file) {
  if (detail::written_through(file)) {
    if (::access(file.c_str(), W_OK) != 0) detail::refused("cannot open");
    return;
  }
  const std::filesystem::path target = detail::target_of(file);
  std::error_code ignored;
  if (std::filesystem::is_directory(target, ignored)) errno = EISDIR, detail::refused("cannot be replaced");
  const detail::Partial partial(target);
  detail::write_all(partial.fd(), "?", 1);
}

}  // namespace terse::checkpoint
