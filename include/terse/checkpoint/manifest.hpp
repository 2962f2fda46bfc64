// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/open_file.hpp"
#include "terse/checkpoint/strict_json.hpp"

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
inline bool names_part(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != manifest_file &&
         std::filesystem::path(name).filename() == name;
}

/// All of an open file. Throws checkpoint_error.
inline std::string contents_of(const std::filesystem::path& file, const OpenFile& in) try {
  std::string text(in.bytes(), '\0');
  read_all(file, in.fd(), text.data(), text.size());
  return text;
} catch (const std::bad_alloc&) {
  fail(file, "does not fit into memory");
}
inline std::string digest_of(const std::string& text) {
  Digest digest;
  digest.add(text.data(), text.size());
  return digest.hex();
}

/// A file's own digest where `write` wrote it, which its header has, else that of all its bytes. Throws checkpoint_error.
inline std::string digest_of(const std::filesystem::path& file, const OpenFile& in, bool has_header) {
  if (has_header) {
    const std::string text = in.header();
    return text.substr(digest_position(text), digits);
  }
  Digest digest;
  std::vector<char> some(std::size_t{1} << 18);
  for (std::size_t left = in.bytes(); left > 0;) {
    const std::size_t now = std::min(left, some.size());
    read_all(file, in.fd(), some.data(), now);
    digest.add(some.data(), now);
    left -= now;
  }
  return digest.hex();
}

/// What the file is by now. Of a file that `write` wrote the header is read, of others all.
inline Part part_of(const std::filesystem::path& folder, const std::string& name, int rank, bool has_header) {
  const std::filesystem::path file = folder / name;
  const OpenFile in(file);
  return {name, rank, in.bytes(), has_header, digest_of(file, in, has_header)};
}

inline Json json_of(const Part& part) {
  return {{"name", part.name},
          {"rank", part.rank},
          {"bytes", part.bytes},
          {part.has_header ? "digest_header" : "digest", part.digest}};
}
/// Not `get`, which converts fractions and numbers of any size. Throws Json::exception.
inline std::uint64_t count_of(const Json& json, const char* name) {
  return json.at(name).get_ref<const Json::number_unsigned_t&>();
}
/// Throws Json::exception.
inline Part part_of(const Json& json) {
  const bool has_header = json.contains("digest_header");
  return {json.at("name").get<std::string>(), static_cast<int>(count_of(json, "rank")),
          count_of(json, "bytes"), has_header,
          json.at(has_header ? "digest_header" : "digest").get<std::string>()};
}

}  // namespace detail

/// What a folder's manifest says, and the files that it names.
class Manifest {
 public:
  Manifest(const std::filesystem::path& folder, std::uint64_t step, int world, std::vector<Part> parts)
      : step_(step), world_(world), parts_(std::move(parts)) {
    // So that the files stay where they are when the program goes to another folder.
    detail::naming(folder, [&] { folder_ = std::filesystem::absolute(folder); });
  }

  /// Reads and verifies the manifest itself, not yet the files. Throws checkpoint_error.
  static Manifest read(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / detail::manifest_file;
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored))
      detail::fail(
          folder,
          "has no manifest.json: it isn't whole, or from before there were manifests; files that are, "
          "terse::checkpoint::load reads one by one");
    const detail::OpenFile in(file);
    if (in.bytes() > detail::max_header)
      detail::fail(file, "has " + std::to_string(in.bytes()) + " bytes, more than any manifest (" +
                             std::to_string(detail::max_header) +
                             "): it is damaged; go on from another checkpoint");
    const std::string text = detail::contents_of(file, in);
    try {
      const detail::Json json = detail::parse(file, text);
      std::vector<Part> parts;
      for (const detail::Json& part : json.at("parts")) parts.push_back(detail::part_of(part));
      Manifest found(folder, detail::count_of(json, "step"),
                     static_cast<int>(detail::count_of(json, "world")), std::move(parts));
      // To the byte, so that nothing in it can be other than it was.
      if (found.text() == text && found.is_possible()) return found;
    } catch (const detail::Json::exception&) {  // said below
    } catch (const checkpoint_error&) {         // the same, of text that no manifest has
    }
    detail::fail(file, "is damaged or of a later version; go on from another checkpoint");
  }

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
  void verify_size(const Part& part) const { compare_size(part, detail::OpenFile(folder_ / part.name)); }
  /// Throws checkpoint_error unless the part is there and is what was saved. Of files that `write` wrote the header is
  /// compared; their data are when they are read, with a digest in the header.
  void verify(const Part& part) const {
    const std::filesystem::path file = folder_ / part.name;
    const detail::OpenFile in(file);
    compare_size(part, in);
    compare_digest(part, detail::digest_of(file, in, part.has_header));
  }

  /// What a small file holds, verified. Not collective. Throws checkpoint_error, also where there is none of that name.
  std::string contents(const std::string& name) const {
    const Part& saved = part(name);
    const std::filesystem::path file = folder_ / name;
    const detail::OpenFile in(file);
    compare_size(saved, in);
    std::string text = detail::contents_of(file, in);
    if (!saved.has_header) compare_digest(saved, detail::digest_of(text));
    return text;
  }

  /// As it stands in the file.
  std::string text() const {
    detail::Json json{{"format", "terse manifest 1"}, {"world", world_}, {"step", step_}};
    json["parts"] = detail::Json::array();
    for (const Part& part : parts_) json["parts"].push_back(detail::json_of(part));
    json["digest"] = detail::digest_of(json.dump());
    return json.dump(2) + "\n";
  }

 private:
  const Part& part(const std::string& name) const {
    for (const Part& part : parts_)
      if (part.name == name) return part;
    detail::fail(folder_, "holds no " + detail::quoted(name) + ", says its manifest");
  }
  /// Whoever forges a manifest can give it a digest, too.
  bool is_possible() const {
    return world_ > 0 && std::all_of(parts_.begin(), parts_.end(), [this](const Part& part) {
             return detail::names_part(part.name) && part.rank >= 0 && part.rank < world_;
           });
  }
  /// The size first: whatever is to be hashed or held in memory is as large as what was saved.
  void compare_size(const Part& saved, const detail::OpenFile& found) const {
    if (found.bytes() != saved.bytes)
      differs(saved, "has " + std::to_string(found.bytes()) + " bytes, not " + std::to_string(saved.bytes));
  }
  void compare_digest(const Part& saved, const std::string& found) const {
    if (found != saved.digest) differs(saved, "has the digest " + found + ", not " + saved.digest);
  }
  [[noreturn]] void differs(const Part& saved, const std::string& how) const {
    detail::fail(folder_ / saved.name,
                 how + ", as the manifest says: it is damaged, or of another save than step " +
                     std::to_string(step_) +
                     "; put the right file in its place, or go on from another checkpoint");
  }

  std::filesystem::path folder_;
  std::uint64_t step_;
  int world_;
  std::vector<Part> parts_;
};

}  // namespace terse::checkpoint
