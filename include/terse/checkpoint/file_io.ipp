// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "terse/checkpoint/file_io.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE std::string about(const std::filesystem::path& file, const std::string& sentence) {
  return "checkpoint '" + file.string() + "': " + sentence;
}

TERSE_CORE void fail(const std::filesystem::path& file, const std::string& sentence) {
  throw checkpoint_error(about(file, sentence));
}

TERSE_CORE void fail_errno(const std::filesystem::path& file, const std::string& sentence) {
  fail(file, sentence + ": " + std::generic_category().message(errno));
}

TERSE_CORE void read_all(const std::filesystem::path& file, int fd, void* data, std::size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::read(fd, next, std::min(bytes, std::size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno(file, "cannot read");
    if (done == 0) fail(file, "became shorter while it was read");
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

TERSE_CORE std::string quoted(const std::string& name) {
  using Json = nlohmann::json;
  return Json(name.substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace terse::checkpoint::detail
