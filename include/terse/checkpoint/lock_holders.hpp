// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <charconv>
#include <fstream>
#include <vector>

namespace terse::checkpoint::detail {

/// Returns the processes of this machine that hold a lock of `flock` on an open file, as far as this process may
/// inspect them. The system's list of locks can't be used: it names the process that took a lock, even after a fork
/// has inherited the lock and that process has ended. Empty on systems without Linux's /proc.
std::vector<pid_t> lock_holders(int fd);

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/lock_holders.ipp"
#endif
