// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "input_error.hpp"
#include "terse/checkpoint/replace_file.hpp"

namespace train {

void check_output(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  std::error_code fault;
  if (std::filesystem::is_directory(path, fault))
    throw input_error(fmt::format("{}: '{}' is a directory, not a file", option, path));
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) parent = ".";
  if (!std::filesystem::is_directory(parent, fault))
    throw input_error(fmt::format("{}: there is no directory '{}'", option, parent.string()));
  try {
    terse::checkpoint::check_replaceable(path);
  } catch (const std::system_error& refusal) {
    throw input_error(fmt::format("{}: '{}' can't be written: {}", option, path, refusal.what()));
  }
}

void write_output(const std::string& path, const std::string& text) {
  try {
    terse::checkpoint::replace_file(path, text);
  } catch (const std::system_error& refusal) {
    throw input_error(fmt::format("{}: can't be written: {}", path, refusal.what()));
  }
}

void print(std::FILE* out, const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0)
    throw input_error(fmt::format("can't print: {}", std::strerror(errno)));
}

void Outputs::operator()(const std::function<void()>& write) {
  try {
    write();
  } catch (const input_error& fault) {
    complain_(fault.what());
    all_written_ = false;
  }
}

}  // namespace train
