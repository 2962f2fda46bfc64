// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

// Help that is as wide as the terminal.

namespace train {

/// Breaks a line of help behind words that would go beyond `width`. What goes on begins where the line's last column of text does, as two
/// spaces or more begin one.
inline std::string line_to_width(std::string line, std::size_t width) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", begin);
  std::size_t indent =
      gap == std::string::npos ? begin : std::min(line.find_first_not_of(' ', gap), line.size());
  if (indent > width / 2) indent = std::min(begin + 2, width / 2);
  if (begin > indent) line.replace(0, begin, indent, ' ');
  std::string broken;
  while (line.size() > width) {
    std::size_t end = line.rfind(' ', width);
    if (end == std::string::npos || end <= indent) end = line.find(' ', width);
    if (end == std::string::npos) break;
    broken += line.substr(0, end) + "\n";
    line = std::string(indent, ' ') + line.substr(std::min(line.find_first_not_of(' ', end), line.size()));
  }
  return broken + line;
}

/// All lines of a text.
inline std::string to_width(std::string_view text, std::size_t width) {
  std::string broken;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    broken += line_to_width(std::string(line), width);
    text.remove_prefix(line.size());
    if (!text.empty()) broken += '\n', text.remove_prefix(1);
  }
  return broken;
}

/// Prints help: to a terminal as wide as that is, elsewhere as it is.
inline void print_help(std::FILE* out, std::string_view text) {
  winsize size{};
  const bool known =
      isatty(fileno(out)) != 0 && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20;
  const std::string broken = known ? to_width(text, size.ws_col) : std::string(text);
  std::fputs(broken.c_str(), out);
}

}  // namespace train
