// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bert {

/// The word pieces of a lower-case BERT, for ASCII text. A word is cut into the longest pieces from its left, those after
/// the first begin with "##"; each punctuation mark is a word. Source: Wu et al., "Google's neural machine translation
/// system", 2016, section 4.1.
class WordPieces {
 public:
  static constexpr std::int64_t padding = 0, unknown = 100, begin = 101, end = 102;

  /// Reads the vocabulary of a tokenizer.json. Throws std::runtime_error that names the file.
  explicit WordPieces(const std::string& file) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error(file + ": can't be read");
    try {
      const nlohmann::json all = nlohmann::json::parse(in);
      for (const auto& [piece, id] : all.at("model").at("vocab").items())
        ids_[piece] = id.get<std::int64_t>();
    } catch (const nlohmann::json::exception& fault) {
      throw std::runtime_error(file + ": is no tokenizer.json of word pieces: " + fault.what());
    }
  }

  /// Returns [CLS], the pieces and [SEP], of which at most `most`. Throws std::invalid_argument for other than ASCII.
  std::vector<std::int64_t> operator()(std::string_view text, std::size_t most) const {
    std::vector<std::int64_t> found{begin};
    std::string word;
    for (const char c : text) {
      const auto symbol = static_cast<unsigned char>(c);
      if (symbol > 127) throw std::invalid_argument("a text is not ASCII: " + std::string(text));
      if (std::isalnum(symbol)) {
        word += static_cast<char>(std::tolower(symbol));
        continue;
      }
      add(word, found);
      word.clear();
      if (std::ispunct(symbol)) add(std::string(1, c), found);
    }
    add(word, found);
    if (found.size() + 1 > most) found.resize(most - 1);
    found.push_back(end);
    return found;
  }

 private:
  void add(const std::string& word, std::vector<std::int64_t>& found) const {
    const std::size_t before = found.size();
    for (std::size_t at = 0; at < word.size();) {
      std::size_t stop = word.size();
      auto piece = ids_.end();
      for (; stop > at; --stop)
        if (piece = ids_.find((at > 0 ? "##" : "") + word.substr(at, stop - at)); piece != ids_.end()) break;
      if (stop == at) {
        found.resize(before);
        found.push_back(unknown);
        return;
      }
      found.push_back(piece->second);
      at = stop;
    }
  }

  std::unordered_map<std::string, std::int64_t> ids_;
};

}  // namespace bert
