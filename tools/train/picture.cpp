// SPDX-License-Identifier: Apache-2.0
#include "picture.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "input_error.hpp"
#include "output.hpp"

namespace train {
namespace {

/// A folder that only this user may read.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terse-picture-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw input_error(fmt::format("{}: can't be made: {}", pattern, std::strerror(errno)));
    path_ = pattern;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Runs Python without a shell, so that no character of a path means anything. Returns its wait status, or -1 if it can't be started.
int run_python(std::string argument, const std::string& input, const std::string& output,
               const std::string& complaints) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int fresh = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), fresh, 0666);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, complaints.c_str(), fresh, 0666);
  std::string program = "python3";
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  pid_t child = 0;
  const int fault = posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return status;
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

void check_picture(const std::string& option, const std::string& path) {
  if (!path.empty() && std::filesystem::path(path).extension() != ".svg")
    throw input_error(option + ": '" + path + "' does not end in .svg, and the picture is an SVG");
}

void check_drawing(const std::string& option, const std::string& path) {
  check_output(option, path);
  if (!path.empty() && run_python("--version", "/dev/null", "/dev/null", "/dev/null") != 0)
    throw input_error(option + ": python3 is not installed, and it draws the picture");
}

void write_picture(const std::string& path, const nlohmann::ordered_json& picture) {
  const Scratch scratch;
  write_output(scratch.file("json"), picture.dump());
  const int status =
      run_python(TERSE_DRAW, scratch.file("json"), scratch.file("svg"), scratch.file("complaints"));
  std::string complaints = status == -1 ? "python3 is not installed" : read_whole(scratch.file("complaints"));
  std::replace(complaints.begin(), complaints.end(), '\n', ' ');
  if (status != 0) throw input_error(fmt::format("{}: can't be drawn: {}", path, complaints));
  write_output(path, read_whole(scratch.file("svg")));
}

}  // namespace train
