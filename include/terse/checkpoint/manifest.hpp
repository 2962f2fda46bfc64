// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/open_file.hpp"

// What ties the files of one checkpoint together: manifest.json names all of them, by whom they were written and with what
// digests, and the step and the number of ranks.
//
//     {"format": "terse manifest 1", "world": 4, "step": 500,
//      "parts": [{"name": "rank-0-of-4.safetensors", "rank": 0, "bytes": 81234, "digest_header": "..."},
//                {"name": "position", "rank": 0, "bytes": 4, "digest": "..."}],
//      "digest": "..."}

namespace terse::checkpoint {

/// One file of a checkpoint.
struct Part {
  std::string name;         ///< within the folder
  int rank = 0;             ///< who wrote it
  std::uint64_t bytes = 0;  ///< its size
  bool has_header =
      false;  ///< written by `write`: `digest` is its digest_header, which covers the digest of its data
  std::string digest;  ///< else XXH3-128 of all its bytes

  bool operator==(const Part&) const = default;
};

namespace detail {

inline constexpr const char* manifest_file = "manifest.json";

/// Whether a file of a checkpoint may have that name: it lies in the folder itself.
bool names_part(const std::string& name);

/// All of an open file. Throws checkpoint_error.
std::string contents_of(const std::filesystem::path& file, const OpenFile& in);
std::string digest_of(const std::string& text);

/// A file's own digest where `write` wrote it, which its header has, else that of all its bytes. Throws checkpoint_error.
std::string digest_of(const std::filesystem::path& file, const OpenFile& in, bool has_header);

/// What the file is by now. Of a file that `write` wrote the header is read, of others all.
Part part_of(const std::filesystem::path& folder, const std::string& name, int rank, bool has_header);

/// Parts of one rank as text for the others.
std::string text_of(const std::vector<Part>& parts);
std::vector<Part> parts_of(const std::string& text);

}  // namespace detail

/// What a folder's manifest says, and the files that it names.
class Manifest {
 public:
  Manifest(const std::filesystem::path& folder, std::uint64_t step, int world, std::vector<Part> parts);

  /// Reads and verifies the manifest itself, not yet the files. Throws checkpoint_error.
  static Manifest read(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const noexcept { return folder_; }
  /// The optimizer's own, when it was saved.
  std::uint64_t step() const noexcept { return step_; }
  /// How many ranks saved it.
  int world() const noexcept { return world_; }
  /// All files but the manifest, of all ranks.
  const std::vector<Part>& parts() const noexcept { return parts_; }

  /// Where a part of that name is, or would be.
  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  /// Throws checkpoint_error unless the part is there and has the size that was saved. Reads nothing of it.
  void verify_size(const Part& part) const;
  /// Throws checkpoint_error unless the part is there and is what was saved. Of files that `write` wrote the header is
  /// compared; their data are when they are read, with a digest in the header.
  void verify(const Part& part) const;

  /// What a small file holds, verified. Not collective. Throws checkpoint_error, also where there is none of that name.
  std::string contents(const std::string& name) const;

  /// As it stands in the file.
  std::string text() const;

 private:
  const Part& part(const std::string& name) const;
  /// Whoever forges a manifest can give it a digest, too.
  bool is_possible() const;
  /// The size first: whatever is to be hashed or held in memory is as large as what was saved.
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
