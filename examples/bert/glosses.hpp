// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/draw.hpp"
#include "word_pieces.hpp"

namespace bert {

/// Definitions of WordNet and the class of each, one of 45 such as "noun.animal" or "verb.motion", as word pieces.
struct Glosses {
  static constexpr std::int64_t classes = 45;
  /// Pieces of an example, [CLS] and [SEP] included: 84 % of the glosses have no more, and 37 % of all places are padding.
  static constexpr std::int64_t tokens = 20;

  std::vector<std::int64_t> pieces;   ///< count() x tokens, WordPieces::padding after the last
  std::vector<std::int64_t> lengths;  ///< pieces of each that are no padding
  std::vector<std::int64_t> labels;

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

/// The folder of the Debian package wordnet-base.
inline constexpr const char* wordnet_folder = "/usr/share/wordnet";

/// Reads `most` glosses of WordNet, drawn once for all runs. Of each the definition is taken, without the sentences that
/// show its use. Throws std::runtime_error for a file that can't be read, naming the package.
inline Glosses read_glosses(const WordPieces& pieces, std::size_t most,
                            const std::string& folder = wordnet_folder) {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const char* part : {"noun", "verb", "adj", "adv"}) {
    const std::string file = folder + "/data." + part;
    std::ifstream in(file);
    if (!in) throw std::runtime_error(file + ": can't be read; install the Debian package wordnet-base");
    // "00001740 03 n 01 entity 0 003 ... | definition; "a sentence that shows its use""; the licence is indented.
    for (std::string line; std::getline(in, line);) {
      const std::size_t bar = line.find(" | ");
      if (line.compare(0, 2, "  ") == 0 || bar == line.npos) continue;
      const std::string gloss = line.substr(bar + 3);
      found.emplace_back(gloss.substr(0, gloss.find("; \"")), std::stoll(line.substr(9, 2)));
    }
  }
  const terse::Draw draw = terse::Draw::shared(1, 0, terse::Purpose::shuffle);
  for (std::size_t i = found.size(); i-- > 1;) std::swap(found[i], found[draw.below(i + 1, i)]);

  Glosses glosses;
  for (std::size_t k = 0; k < std::min(most, found.size()); ++k) {
    const std::vector<std::int64_t> some = pieces(found[k].first, static_cast<std::size_t>(Glosses::tokens));
    glosses.pieces.insert(glosses.pieces.end(), some.begin(), some.end());
    glosses.pieces.resize((k + 1) * static_cast<std::size_t>(Glosses::tokens), WordPieces::padding);
    glosses.lengths.push_back(static_cast<std::int64_t>(some.size()));
    glosses.labels.push_back(found[k].second);
  }
  return glosses;
}

}  // namespace bert
