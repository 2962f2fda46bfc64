// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "terse/checkpoint/digest.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/checkpoint/manifest.hpp"
#include "terse/checkpoint/strict_json.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE bool names_part(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != manifest_file &&
         std::filesystem::path(name).filename() == name;
}

TERSE_CORE std::string contents_of(const std::filesystem::path& file, const OpenFile& in) try {
  std::string text(in.bytes(), '\0');
  read_all(file, in.fd(), text.data(), text.size());
  return text;
} catch (const std::bad_alloc&) {
  fail(file, "does not fit into memory");
}

TERSE_CORE std::string digest_of(const std::string& text) {
  Digest digest;
  digest.add(text.data(), text.size());
  return digest.hex();
}

TERSE_CORE std::string digest_of(const std::filesystem::path& file, const OpenFile& in, bool has_header) {
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

TERSE_CORE Part part_of(const std::filesystem::path& folder, const std::string& name, int rank,
                        bool has_header) {
  const std::filesystem::path file = folder / name;
  const OpenFile in(file);
  return {name, rank, in.bytes(), has_header, digest_of(file, in, has_header)};
}

TERSE_CORE Json json_of(const Part& part) {
  return {{"name", part.name},
          {"rank", part.rank},
          {"bytes", part.bytes},
          {part.has_header ? "digest_header" : "digest", part.digest}};
}

/// Returns a count. `get` would convert fractions and numbers of any size. Throws Json::exception.
TERSE_CORE std::uint64_t count_of(const Json& json, const char* name) {
  return json.at(name).get_ref<const Json::number_unsigned_t&>();
}

/// Parses a part. Throws Json::exception.
TERSE_CORE Part part_of(const Json& json) {
  const bool has_header = json.contains("digest_header");
  return {json.at("name").get<std::string>(), static_cast<int>(count_of(json, "rank")),
          count_of(json, "bytes"), has_header,
          json.at(has_header ? "digest_header" : "digest").get<std::string>()};
}

TERSE_CORE std::string text_of(const std::vector<Part>& parts) {
  Json all = Json::array();
  for (const Part& part : parts) all.push_back(json_of(part));
  return all.dump();
}

TERSE_CORE std::vector<Part> parts_of(const std::string& text) {
  std::vector<Part> parts;
  for (const Json& part : Json::parse(text)) parts.push_back(part_of(part));
  return parts;
}

}  // namespace terse::checkpoint::detail

namespace terse::checkpoint {

TERSE_CORE Manifest::Manifest(const std::filesystem::path& folder, std::uint64_t step, int world,
                              std::vector<Part> parts)
    : step_(step), world_(world), parts_(std::move(parts)) {
  // Absolute, so that the files are found when the program changes its working directory.
  detail::naming(folder, [&] { folder_ = std::filesystem::absolute(folder); });
}

TERSE_CORE Manifest Manifest::read(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / detail::manifest_file;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    detail::fail(folder,
                 "has no manifest.json: it isn't whole, or from before there were manifests; files that are, "
                 "terse::checkpoint::load reads one by one");
  const detail::OpenFile in(file);
  if (in.bytes() > detail::max_header)
    detail::fail(file, "has " + std::to_string(in.bytes()) + " bytes, more than any manifest (" +
                           std::to_string(detail::max_header) +
                           "): it is damaged; resume from another checkpoint");
  const std::string text = detail::contents_of(file, in);
  try {
    const detail::Json json = detail::parse(file, text);
    std::vector<Part> parts;
    for (const detail::Json& part : json.at("parts")) parts.push_back(detail::part_of(part));
    Manifest found(folder, detail::count_of(json, "step"), static_cast<int>(detail::count_of(json, "world")),
                   std::move(parts));
    // Compared byte for byte, so that any difference is found.
    if (found.text() == text && found.is_possible()) return found;
  } catch (const detail::Json::exception&) {  // reported below
  } catch (const checkpoint_error&) {         // reported below; no manifest has this text
  }
  detail::fail(file, "is damaged or of a later version; resume from another checkpoint");
}

TERSE_CORE void Manifest::verify_size(const Part& part) const {
  compare_size(part, detail::OpenFile(folder_ / part.name));
}

TERSE_CORE void Manifest::verify(const Part& part) const {
  const std::filesystem::path file = folder_ / part.name;
  const detail::OpenFile in(file);
  compare_size(part, in);
  compare_digest(part, detail::digest_of(file, in, part.has_header));
}

TERSE_CORE std::string Manifest::contents(const std::string& name) const {
  const Part& saved = part(name);
  const std::filesystem::path file = folder_ / name;
  const detail::OpenFile in(file);
  compare_size(saved, in);
  std::string text = detail::contents_of(file, in);
  if (!saved.has_header) compare_digest(saved, detail::digest_of(text));
  return text;
}

TERSE_CORE std::string Manifest::text() const {
  detail::Json json{{"format", "terse manifest 1"}, {"world", world_}, {"step", step_}};
  json["parts"] = detail::Json::array();
  for (const Part& part : parts_) json["parts"].push_back(detail::json_of(part));
  json["digest"] = detail::digest_of(json.dump());
  return json.dump(2) + "\n";
}

TERSE_CORE const Part& Manifest::part(const std::string& name) const {
  for (const Part& part : parts_)
    if (part.name == name) return part;
  detail::fail(folder_, "has no " + detail::quoted(name) + ", according to its manifest");
}

TERSE_CORE bool Manifest::is_possible() const {
  return world_ > 0 && std::all_of(parts_.begin(), parts_.end(), [this](const Part& part) {
           return detail::names_part(part.name) && part.rank >= 0 && part.rank < world_;
         });
}

TERSE_CORE void Manifest::compare_size(const Part& saved, const detail::OpenFile& found) const {
  if (found.bytes() != saved.bytes)
    differs(saved, "has " + std::to_string(found.bytes()) + " bytes, not " + std::to_string(saved.bytes));
}

TERSE_CORE void Manifest::compare_digest(const Part& saved, const std::string& found) const {
  if (found != saved.digest) differs(saved, "has the digest " + found + ", not " + saved.digest);
}

TERSE_CORE void Manifest::differs(const Part& saved, const std::string& how) const {
  detail::fail(folder_ / saved.name,
               how + ", according to the manifest: it is damaged, or of another save than step " +
                   std::to_string(step_) +
                   "; put the right file in its place, or resume from another checkpoint");
}

}  // namespace terse::checkpoint
