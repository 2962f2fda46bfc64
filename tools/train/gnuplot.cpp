// SPDX-License-Identifier: Apache-2.0
#include "gnuplot.hpp"

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

#include "input_error.hpp"
#include "output.hpp"

namespace train {
namespace {

/// A folder for files that nobody else sees.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terse-gnuplot-XXXXXX").string();
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

// Without a shell, so that no character of a path means anything. Returns the wait status, or -1 where gnuplot can't be
// started.
int run_gnuplot(const std::string& argument, const std::string& output, const std::string& complaints) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0666);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, complaints.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0666);
  std::string program = "gnuplot";
  std::string script = argument;
  std::array<char*, 3> arguments{program.data(), script.data(), nullptr};
  pid_t child = 0;
  const int fault = posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environ);
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

bool have_gnuplot() { return run_gnuplot("--version", "/dev/null", "/dev/null") == 0; }

void check_picture(const std::string& option, const std::string& path) {
  if (!path.empty() && std::filesystem::path(path).extension() != ".svg")
    throw input_error(option + ": '" + path + "' does not end in .svg, and the picture is an SVG");
}
void check_drawing(const std::string& option, const std::string& path) {
  check_output(option, path);
  if (!path.empty() && !have_gnuplot())
    throw input_error(option + ": gnuplot is not installed (package gnuplot-nox)");
}

std::string draw(const std::string& script) {
  const Scratch scratch;
  write_output(scratch.file("script"), script);
  const int status = run_gnuplot(scratch.file("script"), scratch.file("picture"), scratch.file("complaints"));
  if (status == -1) throw input_error("gnuplot is not installed (package gnuplot-nox)");
  std::string picture = read_whole(scratch.file("picture"));
  std::string complaints = read_whole(scratch.file("complaints"));
  if (status != 0 || picture.find("</svg>") == std::string::npos) {
    std::replace(complaints.begin(), complaints.end(), '\n', ' ');
    throw input_error("gnuplot failed: " + complaints);
  }
  return picture;
}

}  // namespace train
