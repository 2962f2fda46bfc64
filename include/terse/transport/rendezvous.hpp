// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

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
  void check() const;

  /// Rank 0: lets the others read `bytes`. Throws usage_error if the path holds something else, a damaged file or one of the
  /// same run, or can't be written.
  void publish(std::span<const std::byte> bytes) const;

  /// The other ranks: waits until rank 0 has published and fills `bytes`. Throws peer_error naming rank 0 after
  /// `deadline`, with what was found instead; usage_error for a file that is no rendezvous, is damaged or can't be read;
  /// mismatch_error if rank 0 counts other ranks or brings other bytes.
  void fetch(std::span<std::byte> bytes, Deadline deadline) const;

  /// Rank 0, when all have read: removes the file, if it is still this run's.
  void withdraw() const noexcept;

 private:
  static constexpr std::string_view family = "terse rendezvous ", title = "terse rendezvous 2";
  static constexpr std::size_t largest = 64 * 1024;
  struct Text {
    std::string_view run, size, bytes;
  };

  static std::string hexadecimal(std::span<const std::byte> bytes);
  /// The last line, from all others.
  static std::string sum_of(std::string_view lines);
  std::string compose(std::span<const std::byte> bytes) const;

  Text parse(const std::string_view whole) const;

  void take(const Text& text, std::span<std::byte> bytes) const;

  /// What the file holds; nothing if there is none.
  std::optional<std::string> read() const;

  static bool write(int file, std::string_view text);
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/rendezvous.ipp"
#endif
