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

/// The exit status of a program whose folder is locked by another run: EX_UNAVAILABLE of sysexits.h. It may be started
/// again later. The other run may consist of ranks of its last start that have not ended yet.
inline constexpr int in_use_status = 69;

/// A lock that reserves a folder for one run, since two runs would remove each other's checkpoints. It is a lock of
/// the system on `run.lock`, which ends with the process, in any case; the file stays, and names the holder. One
/// process of a run takes it. A process forked from this one also holds the lock, until it ends or calls exec.
///
/// Makes the folder if it is missing. If another run has the lock, throws folder_in_use_error with its host, process
/// and start. Throws checkpoint_error if the folder can't be written to, or if `run.lock` is a link or not a lock
/// file. It leaves that file unchanged. On file systems without locks there is no protection.
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
  /// Returns the first line of the lock file.
  std::string text() const;
  /// Returns the holder of the lock: from the file, or from the system if the lock has been inherited.
  std::string owner() const;

  detail::Descriptor file_;
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/run_lock.ipp"
#endif
