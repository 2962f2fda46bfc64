// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "terse/checkpoint/file_io.hpp"

// A parser of JSON from files that are not trusted.

namespace terse::checkpoint::detail {

using Json = nlohmann::json;

/// A handler that refuses duplicate keys and nesting deeper than a header has. It takes the parser's events, since
/// the parser's callback would search all of an object's members at the end of each of them.
class Strict final : public nlohmann::json_sax<Json> {
 public:
  explicit Strict(const std::filesystem::path& file) : file_(file) {}

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second)
      fail(file_, "the header has the key " + detail::quoted(name) + " twice");
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool open() {
    if (keys_.size() > 2) fail(file_, "the header is nested too deeply");
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::filesystem::path& file_;
  std::vector<std::set<std::string>> keys_;  // of the open objects and arrays
};

/// Parses the header's text strictly: no duplicate keys, no nesting deeper than the format has.
inline Json parse(const std::filesystem::path& file, const std::string& text) {
  // The parser takes a zero byte for the end of the text, and skips a byte order mark.
  if (text.empty() || text.front() != '{' || text.find('\0') != text.npos)
    fail(file, "the header is not a JSON object");
  Strict strict(file);
  Json::sax_parse(text, &strict);  // the other parser finds invalid JSON, too
  try {
    return Json::parse(text);
  } catch (const Json::exception&) {
    fail(file, "the header is not valid JSON");
  }
}

}  // namespace terse::checkpoint::detail
