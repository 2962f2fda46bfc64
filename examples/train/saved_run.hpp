// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "report.hpp"

// What --checkpoint writes, for each optimizer:
//
//     DIR/one-bit-adam/step-00000500/rank-0-of-4.safetensors   parameters and state of a rank
//     DIR/one-bit-adam/step-00000500/train-state.json          losses, bytes and seconds so far
//     DIR/one-bit-adam/step-00000500/COMPLETE                  last of all: everything above is there
//
// All ranks must see the same DIR.

namespace train {

/// What one rank has sent, and its seconds. Of steps of one kind the last one counts that was not skipped: they are all
/// equal, unless a ratio falls.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t compressed_step = 0;
  std::uint64_t dense_step = 0;
  std::int64_t rounds = 0;
  double in_steps = 0;  ///< seconds of computing and of optimizers' steps
  double waiting = 0;   ///< seconds of these inside the transport
};

/// A run as far as it has come.
struct SavedRun {
  std::filesystem::path directory;
  std::int64_t step = 0;           ///< steps done
  std::vector<double> train_loss;  ///< of each of them
  std::vector<std::uint64_t> bytes_after_step;
  Seconds seconds;
  std::vector<Sent> sent;  ///< of each rank
};

std::filesystem::path step_directory(const std::string& root, Optimizer optimizer, std::int64_t step);
std::string rank_file(int rank, int ranks);

/// The newest complete checkpoint of `optimizer` below `root`, or nothing where there is none. Throws
/// input_error if its train-state.json can't be trusted or was saved under other settings.
std::optional<SavedRun> find_saved_run(const std::string& root, Optimizer optimizer,
                                       const Settings& settings);

/// Throws input_error if `root` holds checkpoints of `optimizer` beyond `step`: a run that starts there would
/// mix its own with those of another.
void check_nothing_newer(const std::string& root, Optimizer optimizer, std::int64_t step);

/// Makes the directory, which is not complete from here on. Rank 0 calls it before any rank writes.
void open_directory(const std::filesystem::path& directory);
/// Writes train-state.json and COMPLETE, and then removes all but the newest two complete checkpoints beside
/// it. Rank 0 calls it when all ranks have written. Both throw std::runtime_error where the disk refuses.
void complete_directory(const SavedRun& saved, const Settings& settings);

}  // namespace train
