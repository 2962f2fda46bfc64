// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

#include "input_error.hpp"
#include "terse/core/version.hpp"
#include "to_width.hpp"

// What the command lines of all programs have in common.

namespace train {

inline void add_help(CLI::App& app) {
  app.set_help_flag("-h,--help", "print this and exit")->group("Help");
  app.set_version_flag(
         "--version",
         fmt::format("terse {}.{}.{}", TERSE_VERSION_MAJOR, TERSE_VERSION_MINOR, TERSE_VERSION_PATCH),
         "print the version and exit")
      ->group("Help");
}

/// False where help or the version was asked for, which it prints. Throws input_error, of one line.
inline bool parse(CLI::App& app, int argc, const char* const* argv, std::FILE* out) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    // One blank line between groups is enough.
    std::string text = app.help() + "\n";
    for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
    print_help(out, text);
    return false;
  } catch (const CLI::CallForVersion& version) {
    std::fprintf(out, "%s\n", version.what());
    return false;
  } catch (const CLI::ExtrasError&) {
    throw input_error("unknown argument '" + app.remaining().front() + "'; see --help");
  } catch (const CLI::ArgumentMismatch& fault) {
    const std::string line = fault.what();
    const std::string option = line.substr(0, line.find(':'));
    throw input_error(option + (line.find("missing") != std::string::npos ? ": needs a value; see --help"
                                                                          : ": given more than once"));
  } catch (const CLI::ParseError& fault) {
    std::string line = fault.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw input_error(line + "; see --help");
  }
}

}  // namespace train
