// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../bert/sizes.hpp"

namespace pipeline {

/// What a model learns: classes of pictures, or the next character of a text.
enum class Task { pictures, text, glosses };

/// Examples in memory, row by row. Symbols of a text are whole numbers, as inputs, too, so that all tasks have one type.
struct Examples {
  std::vector<float> inputs;          ///< count x input_width
  std::vector<std::int64_t> targets;  ///< count x target_width
  std::vector<std::int64_t> lengths;  ///< inputs of an example that are no padding; empty: all
  std::int64_t count = 0;
  std::int64_t input_width = 0;
  std::int64_t target_width = 0;
};

/// A model whose parameters somebody else has trained, see ../bert/pretrained.hpp.
struct Pretrained {
  bert::Sizes sizes;
  std::function<const float*(const std::string& name, const std::vector<std::int64_t>& shape)> floats;
};

/// One task's data: for training beforehand, which the fine-tuned model starts from, for fine-tuning, and for testing
/// that.
struct Data {
  Examples before, tuning, test;
  Pretrained pretrained = {};  ///< where the model begins with such
};

/// Positions of an example that may be padding.
inline std::int64_t positions(const Data& data) {
  return data.tuning.lengths.empty() ? 1 : data.tuning.input_width;
}
/// Those of some examples; none where nothing is padded.
inline std::vector<std::int64_t> lengths_of(const Examples& examples, const std::uint64_t* ids,
                                            std::size_t count) {
  std::vector<std::int64_t> lengths;
  for (std::size_t k = 0; !examples.lengths.empty() && k < count; ++k)
    lengths.push_back(examples.lengths[ids[k]]);
  return lengths;
}

}  // namespace pipeline
