// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "terse/checkpoint/agreement.hpp"
#include "terse/checkpoint/file_io.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE std::uint64_t step_of(const std::filesystem::path& file, const File& read) {
  std::uint64_t step;
  std::memcpy(&step, read.tensor("state.steps", "U64", {}).data(), sizeof step);
  if (read.metadata("step") != std::to_string(step)) fail(file, "disagrees with itself about its step");
  return step;
}

TERSE_CORE void Attempt::keep(Outcome what, const char* why, int rank) {
  outcome = what;
  failure = std::current_exception();
  words = why;
  if (words.rfind("terse: ", 0) == 0) words.erase(0, 7);
  own = rank < 0;
}

TERSE_CORE void throw_as(Outcome outcome, const std::string& sentence, int rank) {
  if (outcome == Outcome::foreign) throw foreign_checkpoint_error(sentence, rank);
  if (outcome == Outcome::in_use) throw folder_in_use_error(sentence, rank);
  if (outcome == Outcome::unusable) throw checkpoint_error(sentence, rank);
  throw error(sentence, rank);
}

}  // namespace terse::checkpoint::detail
