// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/safetensors.hpp"
#include "terse/transport/concept.hpp"

// A load is all or nothing: every rank reads its own file, tells the others what it has found, and only then changes
// anything.

namespace terse::checkpoint::detail {

/// The step that a file is of, by its own two words.
inline std::uint64_t step_of(const std::filesystem::path& file, const File& read) {
  std::uint64_t step;
  std::memcpy(&step, read.tensor("state.steps", "U64", {}).data(), sizeof step);
  if (read.metadata("step") != std::to_string(step)) fail(file, "disagrees with itself about its step");
  return step;
}

/// `read()` reads and checks this rank's file and says what it has found, a struct of std::uint64_t with `step`. Returns
/// what all have found, by rank. Collective. Throws on every rank unless all files are good and of one step:
/// checkpoint_error in its own words where its own file is at fault, else one that names the rank, and mismatch_error
/// where the steps differ. `who` is what a rank is called.
template <class T, class Read>
auto read_together(const std::filesystem::path& file, T& channel, const std::string& who, Read read) {
  using Found = decltype(read());
  struct Verdict {
    std::uint64_t good = 0;
    Found found{};
  } mine;
  std::exception_ptr failure;
  try {
    mine.found = read();
    mine.good = 1;
  } catch (...) {  // the others wait for what this rank has to say, whatever it was
    failure = std::current_exception();
  }
  Assembly<Verdict, T> everyone(channel);
  std::vector<Found> all;
  bool good = true;
  int culprit = 0;
  for (const Verdict& verdict : everyone(channel, mine, Phase::setup)) {
    all.push_back(verdict.found);
    good = good && verdict.good != 0;
    if (good) ++culprit;
  }
  if (failure) std::rethrow_exception(failure);
  if (!good)
    throw checkpoint_error(who + " " + std::to_string(culprit) + " can't load its file ('" + file.string() +
                               "' is good); nothing was changed",
                           channel.rank());
  const std::uint64_t own = all[static_cast<std::size_t>(channel.rank())].step;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].step != own)
      throw mismatch_error(who + " " + std::to_string(rank) + " has a checkpoint of step " +
                               std::to_string(all[rank].step) + ", this " + who + " of step " +
                               std::to_string(own) + " ('" + file.string() +
                               "'); nothing was changed. Load files of one save",
                           channel.rank());
  return all;
}

}  // namespace terse::checkpoint::detail
