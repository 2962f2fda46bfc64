// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// Hands a few bytes from rank 0 to the other ranks through a file that all of them see, for jobs whose ranks
/// have no other way to talk yet.
///
/// `run` tells this start of the job from all others: all its ranks know it, and it is used once. A job id with
/// its restart count will do; the path alone will not, since a file may be left over from a start that failed.
/// A file of another run is never read as this one's: rank 0 replaces it, the others go on waiting. A file that
/// is no rendezvous is never replaced.
///
/// The file appears whole (written under another name, then renamed), readable by its owner alone, and ends with a checksum: what
/// has been cut off or has changed since is refused.
struct Rendezvous {
  std::string path;  ///< in a folder that exists; absolute where the program goes to another one meanwhile
  std::string run;   ///< 1 to 100 characters: letters, digits, and . _ : -
  int rank = 0;      ///< this one's
  int size = 1;      ///< of ranks

  /// Throws usage_error for values that can't work.
  void check() const {
    if (path.empty()) throw usage_error("a rendezvous needs a path", rank);
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
             c == '_' || c == ':' || c == '-';
    };
    if (run.empty() || run.size() > 100 || !std::all_of(run.begin(), run.end(), allowed))
      throw usage_error(
          "a rendezvous needs a run of 1 to 100 letters, digits and . _ : - that no other start "
          "of the job has, such as the job's id with its restart count; this is '" +
              run + "'",
          rank);
    if (size < 1 || rank < 0 || rank >= size)
      throw usage_error("a rendezvous of " + std::to_string(size) + " ranks has no rank " +
                        std::to_string(rank));
  }

  /// Rank 0: lets the others read `bytes`. Throws usage_error if the path holds something else, a damaged file or one of the
  /// same run, or can't be written.
  void publish(std::span<const std::byte> bytes) const {
    check();
    if (const std::optional<std::string> there = read()) {
      const Text text = parse(*there);
      if (text.run == run)
        throw usage_error(
            "'" + path + "' is already there for run '" + run +
                "': a run's name serves one start only. Choose another, or remove the file if that "
                "start is over",
            rank);
    }
    std::string name = path + ".XXXXXX";
    const int file = ::mkostemp(name.data(), O_CLOEXEC);  // mode 0600
    if (file < 0) throw usage_error("can't write beside '" + path + "': " + std::strerror(errno), rank);
    const std::string text = compose(bytes);
    const bool written = write(file, text);
    // A network's file system may report only now that the disk is full.
    if (::close(file) != 0 || !written || std::rename(name.c_str(), path.c_str()) != 0) {
      const int reason = errno;
      ::unlink(name.c_str());
      throw usage_error("can't write '" + path + "': " + std::strerror(reason), rank);
    }
  }

  /// The other ranks: waits until rank 0 has published and fills `bytes`. Throws peer_error naming rank 0 after
  /// `deadline`, with what was found instead; usage_error for a file that is no rendezvous, is damaged or can't be read;
  /// mismatch_error if rank 0 counts other ranks or brings other bytes.
  void fetch(std::span<std::byte> bytes, Deadline deadline) const {
    check();
    const auto until = detail::time_after(detail::positive(deadline, rank));
    std::chrono::milliseconds pause{5};
    for (;;) {
      std::string found = "there is no such file";
      if (const std::optional<std::string> there = read()) {
        const Text text = parse(*there);
        if (text.run == run) return take(text, bytes);
        found = "the file there is run '" + std::string(text.run) + "''s, and this is run '" + run + "'";
      }
      if (std::chrono::steady_clock::now() > until)
        throw peer_error(
            "waited " + std::to_string(deadline.count()) + " ms for rank 0 to write '" + path + "': " + found,
            0, rank);
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(100));
    }
  }

  /// Rank 0, when all have read: removes the file, if it is still this run's.
  void withdraw() const noexcept {
    try {
      if (const std::optional<std::string> there = read())
        if (parse(*there).run == run) ::unlink(path.c_str());
    } catch (const std::exception&) {  // a file left behind does no harm: its run is over
    }
  }

 private:
  static constexpr std::string_view family = "terse rendezvous ", title = "terse rendezvous 2";
  static constexpr std::size_t largest = 64 * 1024;
  struct Text {
    std::string_view run, size, bytes;
  };

  static std::string hexadecimal(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte b : bytes) {
      text += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
      text += "0123456789abcdef"[std::to_integer<int>(b) & 15];
    }
    return text;
  }
  /// The last line, from all others.
  static std::string sum_of(std::string_view lines) {
    const auto bytes = std::as_bytes(std::span(lines));
    const std::uint64_t hash = hash_bytes(bytes.data(), bytes.size());
    return "sum " + hexadecimal(std::as_bytes(std::span(&hash, 1))) + "\n";
  }
  std::string compose(std::span<const std::byte> bytes) const {
    const std::string lines = std::string(title) + "\nrun " + run + "\nsize " + std::to_string(size) +
                              "\nbytes " + hexadecimal(bytes) + "\n";
    return lines + sum_of(lines);
  }

  Text parse(const std::string_view whole) const {
    std::string_view text = whole;
    const auto line = [&](std::string_view key) -> std::optional<std::string_view> {
      const std::size_t end = text.find('\n');
      if (end == text.npos || text.substr(0, key.size()) != key) return std::nullopt;
      const std::string_view value = text.substr(key.size(), end - key.size());
      text.remove_prefix(end + 1);
      return value;
    };
    const auto head = line(title);
    const auto its_run = head ? line("run ") : std::nullopt;
    const auto its_size = its_run ? line("size ") : std::nullopt;
    const auto its_bytes = its_size ? line("bytes ") : std::nullopt;
    if (its_bytes && head->empty() && text == sum_of(whole.substr(0, whole.size() - text.size())))
      return {*its_run, *its_size, *its_bytes};
    throw usage_error(
        "'" + path + "' is " +
            (whole.substr(0, family.size()) == family
                 ? "a rendezvous file that was cut off or has changed since it was written, or is one of "
                   "another version of terse; it is left as it is. Remove it and start the job again"
                 : "not a rendezvous file; it is left as it is"),
        rank);
  }

  void take(const Text& text, std::span<std::byte> bytes) const {
    if (text.size != std::to_string(size))
      throw mismatch_error("rank 0 waits at '" + path + "' for " + std::string(text.size) +
                               " ranks, and this one counts " + std::to_string(size),
                           rank);
    if (text.bytes.size() != 2 * bytes.size())
      throw mismatch_error("rank 0 has written " + std::to_string(text.bytes.size() / 2) + " bytes to '" +
                               path + "', and this rank reads " + std::to_string(bytes.size()),
                           rank);
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (std::size_t b = 0; b < bytes.size(); ++b)
      bytes[b] = static_cast<std::byte>(digit(text.bytes[2 * b]) * 16 + digit(text.bytes[2 * b + 1]));
  }

  /// What the file holds; nothing if there is none.
  std::optional<std::string> read() const {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
      // A network's file system may still know the file that was replaced.
      if (errno == ENOENT || errno == ESTALE) return std::nullopt;
      throw usage_error("can't read '" + path + "': " + std::strerror(errno), rank);
    }
    struct stat kind {};
    if (::fstat(file, &kind) != 0 || !S_ISREG(kind.st_mode)) {
      ::close(file);
      throw usage_error("'" + path + "' is not a regular file", rank);
    }
    std::string text;
    char part[4096];
    for (;;) {
      const ssize_t count = ::read(file, part, sizeof part);
      if (count < 0 && errno == EINTR) continue;
      const int reason = errno;
      if (count <= 0 || text.size() > largest) {
        ::close(file);
        if (count >= 0) return text;
        if (reason == ESTALE) return std::nullopt;
        throw usage_error("can't read '" + path + "': " + std::strerror(reason), rank);
      }
      text.append(part, static_cast<std::size_t>(count));
    }
  }

  static bool write(int file, std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(file, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
};

}  // namespace terse
