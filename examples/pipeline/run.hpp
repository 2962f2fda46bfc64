// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coding.hpp"
#include "data.hpp"
#include "options.hpp"
#include "terse/transport/any.hpp"

namespace pipeline {

/// What all stages work on.
struct Job {
  Options options;
  Data data;
};

/// What a stage has seen. Seconds are of the whole run; what is of a pass, a message or a step is of the epochs after the
/// first, where there are such: in the first one examples travel whole.
struct StageNumbers {
  double change = 0,
         error = 0;        ///< of the activations that it sends in the last epoch, see PipelineStatistics
  bool remembers = false;  ///< whether there are such
  double forward_seconds = 0, backward_seconds = 0, coding_seconds = 0, waiting_seconds = 0;
  double total_seconds = 0;                          ///< in steps, the optimizer's included
  double beside_training = 0;                        ///< seconds of a step that are the optimizer's
  double forward_pass = 0, backward_pass = 0;        ///< seconds of one, and of the coding that goes with it
  double forward_message = 0, backward_message = 0;  ///< bytes of one that it sends
};

/// After an epoch.
struct Epoch {
  double loss = 0;                                      ///< of training, the mean over the epoch's batches
  double test_loss = 0, accuracy = 0;                   ///< of pictures, or of characters
  std::uint64_t forward_bytes = 0, backward_bytes = 0;  ///< that all stages have sent in training so far
  std::uint64_t replica_bytes = 0;                      ///< the same, between the replicas of stages
  double seconds = 0;                                   ///< of its steps
  std::vector<double> change, error;  ///< of each rank's activations, relative; NaN without copies
};

/// One method, fine-tuned with one seed.
struct Run {
  Coding coding;
  std::uint64_t seed = 0;
  std::vector<Epoch> epochs;
  std::vector<StageNumbers> stages;
  double micro_batches = 0;      ///< of a step, the mean
  double step_seconds = 0;       ///< measured
  double predicted_seconds = 0;  ///< terse::makespan of what the stages have measured, and the optimizer
  double megabits = 0;           ///< per second of each link; 0: as fast as it is
  bool same_loss = true;         ///< on all stages, bit for bit
};

/// All runs that the options ask for, on one stage: every stage calls it, with the same job. Stage 0 returns them, others
/// nothing.
std::vector<Run> run_stage(const Job& job, terse::AnyTransport& transport);

}  // namespace pipeline
