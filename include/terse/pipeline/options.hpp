// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/non_finite.hpp"
#include "terse/pipeline/lane.hpp"

namespace terse {

/// Options of a run; equal on all stages.
struct PipelineOptions {
  index_t micro_batch = 0;  ///< maximum number of examples in a micro-batch; required
  std::uint64_t seed = 0;   ///< seed of all random numbers; equal on all stages
  /// Policy for steps with values that are not finite.
  NonFinite on_non_finite = NonFinite::throw_;
  int window = 2;                      ///< messages that each side buffers per direction, 1 to 8
  index_t evaluation_micro_batch = 0;  ///< as micro_batch, for `evaluate`; 0 for micro_batch
  /// Positions of an example, such as the tokens of a text; `lengths` tells `train` how many positions are data. The
  /// elements at each boundary are a multiple of it, stored position after position.
  index_t positions = 1;

  /// Returns the maximum number of examples in a micro-batch.
  index_t rows(bool training) const {
    return training || evaluation_micro_batch == 0 ? micro_batch : evaluation_micro_batch;
  }
};

/// Result of a step; equal on all stages.
struct PipelineResult {
  double loss = 0;  ///< mean over the batch
  bool applied =
      true;  ///< false: a value was not finite and the policy is to skip; don't step with these gradients
  index_t fresh = 0;  ///< examples that were sent whole: seen for the first time, or not kept
};

/// Statistics of a stage since `reset_statistics`.
struct PipelineStatistics {
  /// ||a - m|| / ||a|| of the activations of examples that were sent again: the gain from sending changes. NaN while
  /// there are none, without a memory of examples, at the last stage, and on devices.
  double change = std::numeric_limits<double>::quiet_NaN();
  double error = std::numeric_limits<double>::quiet_NaN();  ///< ||a - m'|| / ||a||, with the updated copy m'
  index_t sampled = 0;          ///< number of rows sampled for these two values, one of each message
  double forward_seconds = 0;   ///< time in the stage's forward passes
  double backward_seconds = 0;  ///< time in its backward passes
  double coding_seconds = 0;    ///< time for packing and unpacking
  double waiting_seconds = 0;   ///< time spent waiting for neighbours and messages: bubble and network
};

namespace detail {

/// Throws usage_error if the options, or the schedule with these options, can't be used.
template <class Plan>
void check_options(const PipelineOptions& options, const Plan& schedule) {
  schedule.check();
  if (options.micro_batch <= 0)
    throw usage_error(
        "micro_batch is the number of examples that go through the stages at once, and must be positive, "
        "not " +
        std::to_string(options.micro_batch));
  if (options.evaluation_micro_batch < 0)
    throw usage_error(
        "evaluation_micro_batch is the number of examples at once in evaluate, or 0 for micro_batch, not " +
        std::to_string(options.evaluation_micro_batch));
  if (options.positions < 1)
    throw usage_error("positions is the number of positions of an example, and must be positive, not " +
                      std::to_string(options.positions));
  if (options.window < 1 || options.window > most_in_lane)
    throw usage_error("window must be in [1, 8], not " + std::to_string(options.window));
  if (schedule.lead() > 4 * index_t{options.window})
    throw usage_error("neighbours of this schedule are " + std::to_string(schedule.lead()) +
                      " micro-batches apart, and with a window of " + std::to_string(options.window) +
                      " would wait for each other forever; the window must be at least a quarter of that");
}

}  // namespace detail

}  // namespace terse
