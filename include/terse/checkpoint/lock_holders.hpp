// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <charconv>
#include <fstream>
#include <vector>

namespace terse::checkpoint::detail {

/// The processes of this machine that hold a lock of `flock` on an open file, as far as this one may look at them. Not by the
/// system's list of locks, which names the process that took one, even after a fork has passed it on and that process has ended.
/// Empty where there is no Linux's /proc.
std::vector<pid_t> lock_holders(int fd);

}  // namespace terse::checkpoint::detail

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/lock_holders.ipp"
#endif
