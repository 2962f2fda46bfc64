// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "../../tools/train/idx.hpp"
#include "any_schedule.hpp"
#include "coding.hpp"
#include "data.hpp"

namespace pipeline {

enum class Transport { threads, mpi };
/// Between the replicas of a stage.
enum class Averaging {
  dense,   ///< Adam
  one_bit  ///< 1-bit Adam, after Adam in 15 % of the steps
};

/// A link between stages that is slow, or is made so.
struct SlowLink {
  double megabits = 0;        ///< per second; 0: as fast as it is
  bool real = false;          ///< the network has this bandwidth: nothing is delayed, and predictions know it
  double forward_passes = 0;  ///< instead: so slow that an fp32 message takes this many; 0: not
  double delay_ms = 0;
  bool any() const { return megabits > 0 || forward_passes > 0 || delay_ms > 0; }
};

/// The command line, checked. Defaults of the two tasks differ, and are in place here.
struct Options {
  Task task = Task::pictures;
  int stages = 4, replicas = 1;
  Averaging averaging = Averaging::dense;
  Transport transport = Transport::threads;
  std::vector<Coding> codings;  ///< one run each
  std::string mapped;           ///< a folder for copies of examples; empty: in RAM
  AnySchedule schedule;
  std::int64_t batch = 0, micro_batch = 0;
  int window = 2;
  int epochs = 8;
  int epochs_before = 0;      ///< of training beforehand
  std::int64_t examples = 0;  ///< to fine-tune on, at most
  double learning_rate = 0;
  double warm_up = 0;         ///< share of the steps in which the learning rate rises to that
  std::int64_t held_out = 0;  ///< examples to test with, at most; 0: all
  std::string pretrained;     ///< a folder of weights and vocabulary
  std::vector<std::uint64_t> seeds;
  bool recompute = false;
  SlowLink link;
  double deadline = 600;   ///< seconds
  std::string cache;       ///< a folder of what was trained beforehand; empty: none
  std::string json, plot;  ///< files to write, or empty
  bool quiet = false;
};

/// How the model is trained before it is cut: batch and learning rate.
struct Before {
  std::int64_t batch;
  double learning_rate;
};
constexpr Before before(Task task) { return task != Task::pictures ? Before{16, 3e-3} : Before{128, 1e-3}; }

const char* name(Task task);
const char* name(Averaging averaging);

/// Writes the text of `--help` or `--version` to `out` and returns nothing where that was asked for. Throws
/// train::input_error for whatever is unknown, malformed, out of range or at odds.
std::optional<Options> parse_options(int argc, const char* const* argv, std::FILE* out = stdout);

/// Throws train::input_error for outputs that could not be written at the end, and folders that aren't there.
void check_files(const Options& options);

}  // namespace pipeline
