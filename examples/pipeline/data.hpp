// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace pipeline {

/// What a model learns: classes of pictures, or the next character of a text.
enum class Task { pictures, text };

/// Examples in memory, row by row. Symbols of a text are whole numbers, as inputs, too, so that both tasks have one type.
struct Examples {
  std::vector<float> inputs;          ///< count x input_width
  std::vector<std::int64_t> targets;  ///< count x target_width
  std::int64_t count = 0;
  std::int64_t input_width = 0;
  std::int64_t target_width = 0;
};

/// One task's data: for training beforehand, which the fine-tuned model starts from, for fine-tuning, and for testing
/// that.
struct Data {
  Examples before, tuning, test;
};

}  // namespace pipeline
