// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "report.hpp"
#include "terse/checkpoint/manifest.hpp"
#include "terse/checkpoint/run_lock.hpp"

// What --checkpoint writes, for each optimizer, by terse::checkpoint::Folder:
//
//     DIR/run.lock                                             the run that saves here
//     DIR/one-bit-adam/step-00000500/rank-0-of-4.safetensors   parameters and state of a rank
//     DIR/one-bit-adam/step-00000500/train-state.json          losses, bytes and seconds so far, and the settings
//     DIR/one-bit-adam/step-00000500/manifest.json             what all of these must be
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
  std::int64_t step = 0;           ///< steps done
  std::vector<double> train_loss;  ///< of each of them
  std::vector<std::uint64_t> bytes_after_step;
  Seconds seconds;
  std::vector<Sent> sent;  ///< of each rank
};

inline constexpr const char* state_file = "train-state.json";

/// Where the checkpoints of `optimizer` are.
std::filesystem::path checkpoints_of(const std::string& root, const Method& optimizer);

/// What a checkpoint must be to be taken up.
struct Wanted {
  Settings settings;
  int ranks;     ///< that have saved it
  bool elastic;  ///< others may have
};

/// What train-state.json holds, and back. Reading throws checkpoint_error for what is damaged, and input_error for what was
/// saved under other settings or by another number of ranks.
std::string state_of(const SavedRun& saved, const Settings& settings);
SavedRun read_saved_run(const terse::checkpoint::Manifest& manifest, const Wanted& wanted);

/// The newest checkpoint of `optimizer` below `root` whose train-state.json can be read, or nothing where there
/// is no checkpoint: for a look before anything is trained. Throws input_error where none can be read, and where it is not
/// what is wanted.
std::optional<SavedRun> find_saved_run(const std::string& root, const Method& optimizer,
                                       const Wanted& wanted);

/// How many ranks began the run of which that is, by its settings; nothing where none can be read.
std::optional<int> ranks_at_start(const std::string& root, const Method& optimizer);

/// Throws input_error if `root` holds checkpoints of `optimizer` beyond `step`: a run that starts there would
/// mix its own with those of another.
void check_nothing_newer(const std::string& root, const Method& optimizer, std::int64_t step);

/// Keeps DIR of --checkpoint for this process. Throws input_error where it can't be written to, and with
/// terse::checkpoint::in_use_status where another has it.
terse::checkpoint::RunLock lock_checkpoints(const std::string& root);

/// Whether two options mean the same directory, which need not be there yet.
bool same_directory(const std::string& one, const std::string& other);

}  // namespace train
