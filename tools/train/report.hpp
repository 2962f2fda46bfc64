// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "modelled.hpp"

namespace train {

/// Where the wall-clock time of a run went, on rank 0.
struct Seconds {
  double compute = 0;        ///< forward and backward passes
  double local_passes = 0;   ///< the optimizer's own arithmetic
  double communication = 0;  ///< sending, and waiting for others
  double total = 0;
};

/// Options by name, without their dashes, as they are in force for one optimizer.
using Settings = std::map<std::string, std::string>;

/// What one optimizer did. Bytes are those that one rank sends, or of async-swarm-sgd reads.
struct Run {
  std::string optimizer;
  std::string transport;
  std::string device = "cpu";  ///< or "cuda"
  int ranks = 1;
  std::string topology;  ///< or graph, of decentralized optimizers
  std::uint64_t seed = 0;
  std::optional<double> label_skew;  ///< alpha, where ranks see labels in mixtures of their own
  std::int64_t steps = 0;
  std::int64_t warmup_steps = 0;  ///< dense steps before compression starts; 0 or `steps` where it never does
  Settings settings;
  Modelled modelled;
  double test_accuracy = 0;        ///< from 0 to 1; of the mean of all ranks' parameters where they differ
  std::vector<double> train_loss;  ///< of each step, mean over the ranks
  std::int64_t communication_rounds = 0;  ///< steps in which a rank sends something; late averages count once
  std::uint64_t bytes_sent_per_rank = 0;  ///< over the whole run
  /// Of the last step that was compressed, or went to neighbours; 0 where all are dense.
  std::uint64_t bytes_sent_per_compressed_step = 0;
  std::uint64_t dense_bytes_per_step = 0;  ///< of a dense fp32 step of the same model and ranks
  /// Sent by rank 0 up to the end of each step. Where means come late, a part of each leaves in the step in which
  /// others' parts have come: after which step depends on timing, the sum does not.
  std::vector<std::uint64_t> bytes_after_step;
  std::string parameters_hash;        ///< of what test_accuracy is about
  bool ranks_agree = false;           ///< all ranks hold the same parameters, to the bit
  std::vector<double> waiting_share;  ///< of each rank's seconds in steps, those inside the transport
  // Of optimizers whose ranks keep models of their own alone, at the end.
  std::optional<double> mean_single_accuracy;  ///< mean of the accuracies of the ranks' own parameters
  std::optional<double>
      consensus_distance;  ///< sqrt(mean over ranks of ||x_i - x||^2) / ||x||, x the mean of all x_i
  Seconds seconds;

  bool own_models() const { return consensus_distance.has_value(); }
};

/// Steps that the running mean of a loss covers: a fiftieth of all, at least one. The mean trails: it takes
/// in the last so many steps, and fewer at the start.
std::int64_t smoothing_window(std::int64_t steps);

/// The table of the end, at most 120 columns wide. The final loss is the running mean at the last step;
/// factors are bytes of dense steps over bytes sent. A second table is about optimizers whose ranks keep models of their
/// own, a third about who waits where seconds are modelled.
std::string format_table(const std::vector<Run>& runs);
/// Throws input_error where it can't.
void print_table(std::FILE* out, const std::vector<Run>& runs);

// Each of these writes a file by write_output, and throws input_error where it can't.

/// An object with `runs`: an array of objects with the members of Run by the same names, without
/// `bytes_after_step`. A number that is not finite, or missing, is null, and so is `modelled` where nothing is.
void write_json(const std::string& path, const std::vector<Run>& runs);

/// One row for each step of each run: optimizer, seed, step (from 1), loss, bytes (bytes_after_step: of
/// streaming-diloco, overlap-local-sgd, cocod-sgd and swarm-sgd-non-blocking not the same in each run) and, in the last row where ranks
/// keep models of their own, consensus_distance.
void write_csv(const std::string& path, const std::vector<Run>& runs);

/// An SVG picture of the running mean of the loss, against the step and against megabytes sent (logarithmic),
/// all runs together; dashed lines where compression starts. Throws input_error
/// if it can't be drawn or written.
void write_plot(const std::string& path, const std::vector<Run>& runs);

}  // namespace train
