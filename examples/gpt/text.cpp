// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <fstream>
#include <stdexcept>

#include "terse/core/draw.hpp"

namespace gpt {
namespace {

namespace fs = std::filesystem;

Tokens read_tokens(const fs::path& path) {
  std::error_code fault;
  const std::uintmax_t bytes = fs::file_size(path, fault);
  Tokens tokens(fault ? 0 : bytes / sizeof(std::int64_t));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(tokens.data()),
                 static_cast<std::streamsize>(tokens.size() * sizeof(std::int64_t))))
    throw std::runtime_error("cannot read " + path.string() + ", which gpt_sub_words writes");
  return tokens;
}

void write_bytes(const fs::path& path, const void* bytes, std::size_t count) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count)).flush())
    throw std::runtime_error("cannot write " + path.string());
}
void write_tokens(const fs::path& path, const Tokens& tokens) {
  write_bytes(path, tokens.data(), tokens.size() * sizeof(std::int64_t));
}

}  // namespace

Text read_text(const fs::path& folder) {
  Text text{{}, read_tokens(folder / "training"), read_tokens(folder / "held-out")};
  std::ifstream file(folder / "words");
  for (std::string word; std::getline(file, word);) text.words.push_back(word);
  return text;
}

void write_text(const fs::path& folder, const Text& text) {
  fs::create_directories(folder);
  std::string words;
  for (const std::string& word : text.words) words += word + "\n";
  write_bytes(folder / "words", words.data(), words.size());
  write_tokens(folder / "training", text.training);
  write_tokens(folder / "held-out", text.held_out);
}

std::string decode(const Text& text, const Tokens& tokens) {
  const std::string blank = "\u2581";
  std::string decoded;
  for (const std::int64_t token : tokens) {
    std::string word = text.words.at(static_cast<std::size_t>(token));
    for (std::size_t at; (at = word.find(blank)) != std::string::npos;) word.replace(at, blank.size(), " ");
    decoded += word;
  }
  return decoded;
}

Tokens draw_windows(const Tokens& tokens, int rows, int length, std::uint64_t seed, int rank,
                    std::uint64_t step) {
  const terse::Draw draw = terse::Draw::local(seed, rank, step, terse::Purpose::user);
  if (tokens.size() <= static_cast<std::size_t>(length))
    throw std::runtime_error("a text of " + std::to_string(tokens.size()) + " sub-words has no window of " +
                             std::to_string(length));
  Tokens windows;
  for (int row = 0; row < rows; ++row) {
    const std::uint64_t place =
        draw.below(tokens.size() - static_cast<std::size_t>(length), static_cast<std::uint64_t>(row));
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(place);
    windows.insert(windows.end(), begin, begin + length);
  }
  return windows;
}

}  // namespace gpt
