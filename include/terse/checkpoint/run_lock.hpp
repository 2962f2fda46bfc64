// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/lock_holders.hpp"
#include "terse/checkpoint/replace_file.hpp"

namespace terse::checkpoint {

/// What a program returns whose folder another run has, perhaps ranks of its own last run that are still ending, so that
/// it may start later: EX_UNAVAILABLE of sysexits.h.
inline constexpr int in_use_status = 69;

/// Keeps a folder for one run: of two, each would remove what the other saves. By a lock of the system on `run.lock`, which
/// ends with the process, however that ends; the file stays, and says who has it. One process of a run takes it. A process that
/// this one forks has the lock, too, until it ends or calls exec.
///
/// Makes the folder where it is missing. Throws folder_in_use_error where another run has it, with that one's host, process
/// and start, and checkpoint_error where the folder can't be written to, or `run.lock` is a link or no lock's file: that is left
/// as it is. File systems without locks give no protection.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder) : file_(open(folder)) {
    if (::flock(file_.value(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw folder_in_use_error(
          detail::about(folder, "is in use by " + owner() +
                                    ": wait until that run ends, or end all of its processes, or give this "
                                    "one another folder"));
    if (const std::string there = text(); there.rfind(head, 0) != 0 && size() > 0)
      detail::fail(folder / name,
                   "holds something else than a run's lock, and is left as it is: move it away");
    detail::naming(folder, [&] {
      const std::string own = self();
      detail::write_all(file_.value(), own.data(), own.size());
      if (::ftruncate(file_.value(), static_cast<off_t>(own.size())) != 0) detail::refused("cannot write");
    });
  }

 private:
  static constexpr const char *name = "run.lock", *head = "process ", *of_host = " on ", *since = " since ";

  static detail::Descriptor open(const std::filesystem::path& folder) {
    detail::naming(folder, [&] { detail::make_directories(std::filesystem::absolute(folder)); });
    // Whoever may write to the folder may have put a link or a pipe there.
    detail::Descriptor file(
        ::open((folder / name).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (file.value() < 0 && errno == ELOOP)
      detail::fail(folder / name, "is a link, and what it points to is left as it is: move it away");
    struct stat status {};
    if (file.value() < 0 || ::fstat(file.value(), &status) != 0)
      detail::fail_errno(folder, "cannot be written to");
    if (!S_ISREG(status.st_mode)) detail::fail(folder / name, "is not a regular file: move it away");
    return file;
  }
  static std::string host() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return host.data();
  }
  static std::string self() {
    std::array<char, 256> time{};
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
    return head + std::to_string(::getpid()) + of_host + host() + since + time.data() + "\n";
  }
  off_t size() const {
    struct stat status {};
    return ::fstat(file_.value(), &status) == 0 ? status.st_size : 1;
  }
  /// The first line.
  std::string text() const {
    std::array<char, 512> text{};
    const ssize_t length = ::pread(file_.value(), text.data(), text.size(), 0);
    std::string words(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    return words.substr(0, words.find('\n'));
  }
  /// Says who has the lock: by the file, or by the system where it has been passed on.
  std::string owner() const {
    const std::string took = text();
    pid_t taker = 0;
    if (std::sscanf(took.c_str(), "process %d", &taker) != 1 ||
        took.find(of_host + host() + since) == took.npos)
      return took.empty() ? "another run" : took;  // on another machine, as far as is known
    const std::vector<pid_t> holders = detail::lock_holders(file_.value());
    if (std::find(holders.begin(), holders.end(), taker) != holders.end()) return took;
    if (!holders.empty())
      return head + std::to_string(holders.front()) + ", which holds the lock; run.lock names " + took +
             ", and a fork passes a lock on";
    if (::kill(taker, 0) != 0 && errno == ESRCH)
      return took + ", which is seen here no more; perhaps a process that it has forked holds the lock";
    return took;
  }

  detail::Descriptor file_;
};

}  // namespace terse::checkpoint
