// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// Numbers of sub-words, in the order of a text.
using Tokens = std::vector<std::int64_t>;

/// A text that gpt_sub_words has encoded.
struct Text {
  std::vector<std::string> words;  ///< the vocabulary, in UTF-8; U+2581 is a blank
  Tokens training;
  Tokens held_out;  ///< of other documents
};

/// The files of a text in a folder. Throws std::runtime_error.
Text read_text(const std::filesystem::path& folder);
void write_text(const std::filesystem::path& folder, const Text& text);

/// Turns sub-words into text again.
std::string decode(const Text& text, const Tokens& tokens);

/// `rows` windows of `length` tokens each, one after the other, from places that `seed`, `rank` and `step` decide.
Tokens draw_windows(const Tokens& tokens, int rows, int length, std::uint64_t seed, int rank,
                    std::uint64_t step);

}  // namespace gpt
