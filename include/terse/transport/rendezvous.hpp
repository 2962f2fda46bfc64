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

/// A file, visible to all ranks, through which rank 0 passes a few bytes to the others, for jobs whose ranks have no other
/// way to communicate yet.
///
/// `run` distinguishes this start of the job from all others: all its ranks know it, and it is used once. A job id with
/// its restart count is enough; the path alone is not enough, since a failed start may leave its file. A file of another
/// run is never read as this run's: rank 0 replaces it, and the others continue to wait. A file that is not a rendezvous
/// is never replaced.
///
/// The file appears whole (it is written under another name, then renamed), can be read only by its owner, and ends
/// with a checksum. A file that was cut off or has changed since is refused.
struct Rendezvous {
  std::string path;  ///< in an existing folder; absolute if the program changes its working folder
  std::string run;   ///< 1 to 100 characters: letters, digits, and . _ : -
  int rank = 0;      ///< this rank
  int size = 1;      ///< number of ranks

  /// Throws usage_error for invalid values.
  void check() const;

  /// Lets the other ranks read `bytes`; for rank 0. Throws usage_error if the path contains another kind of file, a
  /// damaged file or one of this run, or can't be written.
  void publish(std::span<const std::byte> bytes) const;

  /// Waits until rank 0 has published, and fills `bytes`; for the other ranks. After `deadline`, throws peer_error,
  /// which names rank 0 and the file's state. Throws usage_error for a file that is no rendezvous, is damaged or
  /// can't be read, and mismatch_error if rank 0 has another number of ranks or of bytes.
  void fetch(std::span<std::byte> bytes, Deadline deadline) const;

  /// Removes the file if it is still this run's; for rank 0, after all have read it.
  void withdraw() const noexcept;

 private:
  static constexpr std::string_view family = "terse rendezvous ", title = "terse rendezvous 2";
  static constexpr std::size_t largest = 64 * 1024;
  struct Text {
    std::string_view run, size, bytes;
  };

  static std::string hexadecimal(std::span<const std::byte> bytes);
  /// Returns the last line, a checksum of all others.
  static std::string sum_of(std::string_view lines);
  std::string compose(std::span<const std::byte> bytes) const;

  Text parse(const std::string_view whole) const;

  void take(const Text& text, std::span<std::byte> bytes) const;

  /// Returns the contents of the file, or nothing if there is none.
  std::optional<std::string> read() const;

  static bool write(int file, std::string_view text);
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/rendezvous.ipp"
#endif
