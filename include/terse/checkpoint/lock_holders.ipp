// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "terse/checkpoint/lock_holders.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE std::vector<pid_t> lock_holders(int fd) {
  namespace fs = std::filesystem;
  std::error_code fault, ended;
  const fs::path file = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), fault);
  std::vector<pid_t> holders;
  for (fs::directory_iterator process("/proc", fault), end; !fault && process != end;
       process.increment(fault)) {
    const std::string name = process->path().filename().string();
    pid_t number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    if (read.ec != std::errc{} || read.ptr != name.data() + name.size()) continue;
    const auto holds = [&](const fs::path& open) {
      // Compared by name, since the status of another process's file may wait for a network file system.
      if (fs::read_symlink(open, ended) != file) return false;
      std::ifstream locks(process->path() / "fdinfo" / open.filename());
      for (std::string line; std::getline(locks, line);)
        if (line.rfind("lock:", 0) == 0 && line.find("FLOCK") != line.npos) return true;
      return false;
    };
    for (fs::directory_iterator open(process->path() / "fd", ended); open != end; open.increment(ended))
      if (holds(open->path())) {
        holders.push_back(number);
        break;
      }
  }
  return holders;
}

}  // namespace terse::checkpoint::detail
