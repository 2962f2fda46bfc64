// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "data.hpp"

namespace pipeline {

/// Symbols of a text: the printable characters of ASCII in their order, and the end of a line.
inline constexpr std::int64_t symbols = 96;
/// Characters of an example. Its targets are the characters that follow each of them.
inline constexpr std::int64_t characters = 64;

/// Where the Debian package `fortunes` puts its files.
inline constexpr const char* default_text_directory = "/usr/share/games/fortunes";

/// Symbols of a file of fortunes: without the lines of a single %, a blank for a tabulator, the upper of two characters
/// that are typed over each other; what else is no symbol is left out.
std::vector<std::uint8_t> symbols_of(const std::string& contents);

/// Debian's fortunes: `before` are 5,000 examples of all files but songs-poems and literature, `tuning` 1,000 of
/// songs-poems, and `test` 400 others of those, drawn once for all. Reads a fixed list of files, so that other packages
/// of fortunes change nothing. Throws train::input_error for a file that is missing, naming the package, or can't be
/// read, and for texts that are too short.
Data load_text(const std::string& directory = default_text_directory);

}  // namespace pipeline
