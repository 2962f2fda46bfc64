// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <string>

#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/replace_file.hpp"

namespace terse::checkpoint {

/// What a program returns whose folder another run has, perhaps ranks of its own last run that are still ending, so that
/// it may start later: EX_UNAVAILABLE of sysexits.h.
inline constexpr int in_use_status = 69;

/// Keeps a folder for one run: of two, each would remove what the other saves. By a lock of the system on `run.lock`, which
/// ends with the process, however that ends; the file stays, and says who has it. One process of a run takes it.
///
/// Makes the folder where it is missing. Throws folder_in_use_error where another run has it, with that one's host, process
/// and start, and checkpoint_error where the folder can't be written to. File systems without locks give no protection.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder) : file_(open(folder)) {
    if (::flock(file_.value(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw folder_in_use_error(
          detail::about(folder, "is in use by " + owner() +
                                    ": wait until that run ends or end it, or give this one another folder"));
    detail::naming(folder, [&] {
      const std::string text = self();
      if (::ftruncate(file_.value(), 0) != 0) detail::refused("cannot write");
      detail::write_all(file_.value(), text.data(), text.size());
    });
  }

 private:
  static detail::Descriptor open(const std::filesystem::path& folder) {
    detail::naming(folder, [&] { detail::make_directories(std::filesystem::absolute(folder)); });
    detail::Descriptor file(::open((folder / "run.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file.value() < 0) detail::fail_errno(folder, "cannot be written to");
    return file;
  }
  static std::string self() {
    std::array<char, 256> host{}, time{};
    ::gethostname(host.data(), host.size() - 1);
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
    return "process " + std::to_string(::getpid()) + " on " + host.data() + " since " + time.data() + "\n";
  }
  std::string owner() const {
    std::array<char, 512> text{};
    const ssize_t length = ::pread(file_.value(), text.data(), text.size(), 0);
    std::string words(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    words.erase(words.find_last_not_of('\n') + 1);
    return words.empty() ? "another run" : words;
  }

  detail::Descriptor file_;
};

}  // namespace terse::checkpoint
