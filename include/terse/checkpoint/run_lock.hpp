// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <string>

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
  explicit RunLock(const std::filesystem::path& folder);

 private:
  static constexpr const char *name = "run.lock", *head = "process ", *of_host = " on ", *since = " since ";

  static detail::Descriptor open(const std::filesystem::path& folder);
  static std::string host();
  static std::string self();
  off_t size() const {
    struct stat status {};
    return ::fstat(file_.value(), &status) == 0 ? status.st_size : 1;
  }
  /// The first line.
  std::string text() const;
  /// Says who has the lock: by the file, or by the system where it has been passed on.
  std::string owner() const;

  detail::Descriptor file_;
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/run_lock.ipp"
#endif
