// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <vector>

#include "terse/checkpoint/run_lock.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint {

TERSE_CORE RunLock::RunLock(const std::filesystem::path& folder) : file_(open(folder)) {
  if (::flock(file_.value(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw folder_in_use_error(
        detail::about(folder, "is in use by " + owner() +
                                  ": wait until that run ends, or end all of its processes, or give this "
                                  "one another folder"));
  if (const std::string there = text(); there.rfind(head, 0) != 0 && size() > 0)
    detail::fail(folder / name, "is not a run's lock and was not changed: move it away");
  detail::naming(folder, [&] {
    const std::string own = self();
    detail::write_all(file_.value(), own.data(), own.size());
    if (::ftruncate(file_.value(), static_cast<off_t>(own.size())) != 0) detail::refused("cannot write");
  });
}

TERSE_CORE detail::Descriptor RunLock::open(const std::filesystem::path& folder) {
  detail::naming(folder, [&] { detail::make_directories(std::filesystem::absolute(folder)); });
  // O_NOFOLLOW and O_NONBLOCK, since any user with write access may have put a link or a pipe there.
  detail::Descriptor file(
      ::open((folder / name).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (file.value() < 0 && errno == ELOOP)
    detail::fail(folder / name, "is a link, and its target was not changed: move it away");
  struct stat status {};
  if (file.value() < 0 || ::fstat(file.value(), &status) != 0)
    detail::fail_errno(folder, "cannot be written to");
  if (!S_ISREG(status.st_mode)) detail::fail(folder / name, "is not a regular file: move it away");
  return file;
}

TERSE_CORE std::string RunLock::host() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

TERSE_CORE std::string RunLock::self() {
  std::array<char, 256> time{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  return head + std::to_string(::getpid()) + of_host + host() + since + time.data() + "\n";
}

TERSE_CORE std::string RunLock::text() const {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(file_.value(), text.data(), text.size(), 0);
  std::string words(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return words.substr(0, words.find('\n'));
}

TERSE_CORE std::string RunLock::owner() const {
  const std::string took = text();
  pid_t taker = 0;
  if (std::sscanf(took.c_str(), "process %d", &taker) != 1 ||
      took.find(of_host + host() + since) == took.npos)
    return took.empty() ? "another run" : took;  // on another machine, as far as known
  const std::vector<pid_t> holders = detail::lock_holders(file_.value());
  if (std::find(holders.begin(), holders.end(), taker) != holders.end()) return took;
  if (!holders.empty())
    return head + std::to_string(holders.front()) + ", which holds the lock; run.lock names " + took +
           ", and a fork passes a lock on";
  if (::kill(taker, 0) != 0 && errno == ESRCH)
    return took + ", which is seen here no more; perhaps a process that it has forked holds the lock";
  return took;
}

}  // namespace terse::checkpoint
