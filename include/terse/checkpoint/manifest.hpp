// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/open_file.hpp"

// The manifest of a checkpoint: manifest.json names all its files with their writers and digests, the step, and the
// number of ranks.
//
//     {"format": "terse manifest 1", "world": 4, "step": 500,
//      "parts": [{"name": "rank-0-of-4.safetensors", "rank": 0, "bytes": 81234, "digest_header": "..."},
//                {"name": "position", "rank": 0, "bytes": 4, "digest": "..."}],
//      "digest": "..."}

namespace terse::checkpoint {

/// One file of a checkpoint.
struct Part {
  std::string name;         ///< within the folder
  int rank = 0;             ///< the rank that wrote it
  std::uint64_t bytes = 0;  ///< its size
  bool has_header =
      false;  ///< if `write` wrote it, `digest` is its digest_header, which covers the digest of its data
  std::string digest;  ///< digest_header, or XXH3-128 of all bytes

  bool operator==(const Part&) const = default;
};

namespace detail {

inline constexpr const char* manifest_file = "manifest.json";

/// Checks whether a file of a checkpoint may have that name: it must lie in the folder itself.
bool names_part(const std::string& name);

/// Returns the contents of an open file. Throws checkpoint_error.
std::string contents_of(const std::filesystem::path& file, const OpenFile& in);
std::string digest_of(const std::string& text);

/// Returns a file's own digest from its header if `write` wrote it, else the digest of all its bytes. Throws
/// checkpoint_error.
std::string digest_of(const std::filesystem::path& file, const OpenFile& in, bool has_header);

/// Describes the file as it is now. If `write` wrote it, reads only its header; otherwise reads the whole file.
Part part_of(const std::filesystem::path& folder, const std::string& name, int rank, bool has_header);

/// Returns one rank's parts as text, for the other ranks.
std::string text_of(const std::vector<Part>& parts);
std::vector<Part> parts_of(const std::string& text);

}  // namespace detail

/// The contents of a folder's manifest, with access to the files that it names.
class Manifest {
 public:
  Manifest(const std::filesystem::path& folder, std::uint64_t step, int world, std::vector<Part> parts);

  /// Reads and verifies the manifest itself, not yet the files. Throws checkpoint_error.
  static Manifest read(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const noexcept { return folder_; }
  /// The optimizer's step when it was saved.
  std::uint64_t step() const noexcept { return step_; }
  /// The number of ranks that saved it.
  int world() const noexcept { return world_; }
  /// All files of all ranks, without the manifest.
  const std::vector<Part>& parts() const noexcept { return parts_; }

  /// Returns the path of a part of that name, which need not exist.
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  /// Throws checkpoint_error unless the part exists with the size that was saved. Does not read it.
  void verify_size(const Part& part) const;
  /// Throws checkpoint_error unless the part exists and is the saved one. For files that `write` wrote only headers
  /// are compared. Their data are verified when they are read, by the digest in the header.
  void verify(const Part& part) const;

  /// Returns the verified contents of a small file. Not collective. Throws checkpoint_error, also if there is no file
  /// of that name.
  std::string contents(const std::string& name) const;

  /// Returns the text of the manifest file.
  std::string text() const;

 private:
  const Part& part(const std::string& name) const;
  /// Checks values that a digest can't protect: a forged manifest may have a valid digest.
  bool is_possible() const;
  /// Compares sizes first, so that no file larger than the saved one is hashed or held in memory.
  void compare_size(const Part& saved, const detail::OpenFile& found) const;
  void compare_digest(const Part& saved, const std::string& found) const;
  [[noreturn]] void differs(const Part& saved, const std::string& how) const;

  std::filesystem::path folder_;
  std::uint64_t step_;
  int world_;
  std::vector<Part> parts_;
};

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/manifest.ipp"
#endif
