// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "idx.hpp"
#include "options.hpp"
#include "report.hpp"
#include "terse/transport/any.hpp"

namespace train {

/// What the optimizers it is linked with make of it: defined beside those.
extern const Program program;

/// What there is to do; all ranks of a process read the same one. `options.ranks` are those that began the run, by whom all
/// settings go, `ranks` those that there are now. Where there are checkpoints, a signal that
/// terse::checkpoint::StopSignals notes ends it early.
struct Job {
  Options options;
  int ranks = 1;
  Dataset training, test;
  std::vector<std::int64_t>
      shares;  ///< of the ranks, one after the other, where labels are skewed; else empty
};

/// Reads the data and looks at what is to be resumed. Throws input_error where any of it can't be used.
Job load_job(const Options& options, int ranks);

/// This rank's part in training with each optimizer in turn; collective. The runs are complete on rank 0. Nothing where a
/// signal has asked to stop, see Job: all are saved then.
/// `number` tells the ranks of a machine apart, so that they take turns at its GPUs. Throws what terse throws, and
/// input_error for a checkpoint that can't be loaded.
std::optional<std::vector<Run>> train_rank(const Job& job, terse::AnyTransport& transport, int number);

}  // namespace train
