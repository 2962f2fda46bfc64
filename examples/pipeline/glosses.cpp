// SPDX-License-Identifier: Apache-2.0
#include "glosses.hpp"

#include <algorithm>
#include <exception>
#include <memory>

#include "../bert/glosses.hpp"
#include "../bert/pretrained.hpp"
#include "../bert/word_pieces.hpp"

namespace pipeline {
namespace {

Examples take(const bert::Glosses& all, std::int64_t first, std::int64_t most) {
  Examples some;
  some.count = std::clamp<std::int64_t>(all.count() - first, 0, most);
  some.input_width = bert::Glosses::tokens;
  some.target_width = 1;
  const auto copy = [&](const std::vector<std::int64_t>& from, auto& to, std::int64_t each) {
    to.assign(from.begin() + first * each, from.begin() + (first + some.count) * each);
  };
  copy(all.pieces, some.inputs, bert::Glosses::tokens);
  copy(all.lengths, some.lengths, 1);
  copy(all.labels, some.targets, 1);
  return some;
}

}  // namespace

Data load_glosses(const std::string& folder, std::int64_t tuning, std::int64_t test) {
  try {
    const bert::WordPieces pieces(folder + "/tokenizer.json");
    // The same ones for testing, however many are trained on.
    const bert::Glosses glosses = bert::read_glosses(pieces, static_cast<std::size_t>(-1));
    if (tuning + test > glosses.count())
      throw train::input_error("--examples and --held-out: WordNet has " + std::to_string(glosses.count()) +
                               " glosses");
    Data data;
    data.tuning = take(glosses, 0, tuning);
    data.test = take(glosses, glosses.count() - std::min(test, glosses.count()), test);
    const auto pretrained = std::make_shared<bert::Pretrained>(folder);
    data.pretrained = {pretrained->sizes(),
                       [pretrained](const auto&... one) { return pretrained->floats(one...); }};
    return data;
  } catch (const std::exception& fault) {
    throw train::input_error(fault.what());
  }
}

}  // namespace pipeline
