// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "terse/core/draw.hpp"

namespace pipeline {
namespace {

constexpr std::size_t before_examples = 5'000;
constexpr std::size_t tuning_examples = 1'000;
constexpr std::size_t test_examples = 400;

// All of fortunes 1:1.99.1 and of fortunes-min, on which it depends, but songs-poems and literature.
constexpr const char* names_before[] = {
    "art",      "ascii-art", "computers", "cookie",        "debian",      "definitions", "disclaimer",
    "drugs",    "education", "ethnic",    "food",          "fortunes",    "goedel",      "humorists",
    "kids",     "knghtbrd",  "law",       "linux",         "linuxcookie", "love",        "magic",
    "medicine", "men-women", "news",      "miscellaneous", "paradoxum",   "people",      "perl",
    "pets",     "politics",  "pratchett", "platitudes",    "riddles",     "science",     "sports",
    "startrek", "tao",       "wisdom",    "translate-me",  "work",        "zippy"};
constexpr const char* name_tuning = "songs-poems";

using Symbols = std::vector<std::uint8_t>;

Symbols read(const std::string& directory, const char* name) {
  const std::string path = directory + "/" + name;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw train::input_error(path +
                             ": no such file, or it can't be read; install the Debian package fortunes");
  const std::string contents((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw train::input_error(path + ": can't be read to its end");
  return symbols_of(contents);
}

/// Where the examples of a text begin, in an order of their own.
std::vector<std::size_t> shuffled_begins(const Symbols& text, std::uint64_t stream) {
  constexpr auto length = static_cast<std::size_t>(characters);
  std::vector<std::size_t> begins(text.empty() ? 0 : (text.size() - 1) / length);
  for (std::size_t k = 0; k < begins.size(); ++k) begins[k] = k * length;
  const terse::Draw draw = terse::Draw::shared(0, stream, terse::Purpose::shuffle);
  for (std::size_t i = begins.size(); i-- > 1;) std::swap(begins[i], begins[draw.below(i + 1, i)]);
  return begins;
}

Examples cut(const Symbols& text, const std::vector<std::size_t>& begins, std::size_t first,
             std::size_t count) {
  if (begins.size() < first + count)
    throw train::input_error("the fortunes give " + std::to_string(begins.size()) + " examples, but " +
                             std::to_string(first + count) + " are needed");
  constexpr auto length = static_cast<std::ptrdiff_t>(characters);
  Examples examples;
  examples.count = static_cast<std::int64_t>(count);
  examples.input_width = examples.target_width = characters;
  for (std::size_t k = first; k < first + count; ++k) {
    const auto at = text.begin() + static_cast<std::ptrdiff_t>(begins[k]);
    examples.inputs.insert(examples.inputs.end(), at, at + length);
    examples.targets.insert(examples.targets.end(), at + 1, at + 1 + length);
  }
  return examples;
}

}  // namespace

std::vector<std::uint8_t> symbols_of(const std::string& contents) {
  constexpr auto end_of_line = static_cast<std::uint8_t>(symbols - 1);
  Symbols found;
  found.reserve(contents.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const char c = contents[i];
    const bool begins = i == 0 || contents[i - 1] == '\n';
    if (begins && c == '%' && (i + 1 == contents.size() || contents[i + 1] == '\n'))
      ++i;
    else if (c == '\n')
      found.push_back(end_of_line);
    else if (c == '\t')
      found.push_back(0);
    else if (c == '\b' && !found.empty())
      found.pop_back();
    else if (c >= ' ' && c <= '~')
      found.push_back(static_cast<std::uint8_t>(c - ' '));
  }
  return found;
}

Data load_text(const std::string& directory) {
  Symbols everything;
  for (const char* name : names_before) {
    const Symbols some = read(directory, name);
    everything.insert(everything.end(), some.begin(), some.end());
  }
  const Symbols songs = read(directory, name_tuning);
  const std::vector<std::size_t> anywhere = shuffled_begins(everything, 1),
                                 in_songs = shuffled_begins(songs, 2);
  return {cut(everything, anywhere, 0, before_examples), cut(songs, in_songs, 0, tuning_examples),
          cut(songs, in_songs, tuning_examples, test_examples)};
}

}  // namespace pipeline
