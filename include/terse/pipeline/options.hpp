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

/// What holds for a whole run, alike on all stages.
struct PipelineOptions {
  index_t micro_batch = 0;  ///< examples that go through the stages at once, at most; must be given
  std::uint64_t seed = 0;   ///< of what is drawn at random, alike on all stages
  /// What becomes of a step with a value that is not finite.
  NonFinite on_non_finite = NonFinite::throw_;
  int window = 2;                      ///< messages of a direction that each side has room for, 1 to 8
  index_t evaluation_micro_batch = 0;  ///< examples at once in `evaluate`; 0: micro_batch
  /// Positions of an example, such as the tokens of a text, of which `train` may be told how many are data. Each
  /// boundary's elements are a multiple of it, position after position.
  index_t positions = 1;

  /// Examples that go through the stages at once, at most.
  index_t rows(bool training) const {
    return training || evaluation_micro_batch == 0 ? micro_batch : evaluation_micro_batch;
  }
};

/// What became of a step, alike on all stages.
struct PipelineResult {
  double loss = 0;  ///< mean over the batch
  bool applied =
      true;  ///< false: something was not finite and the policy is to skip; don't step on these gradients
  index_t fresh = 0;  ///< examples that travelled whole: seen for the first time, or not kept
};

/// What a stage has seen since `reset_statistics`.
struct PipelineStatistics {
  /// ||a - m|| / ||a|| of the activations that it sent again: what is gained by sending changes. NaN until there are some,
  /// where nothing is remembered, at the last stage, and on devices.
  double change = std::numeric_limits<double>::quiet_NaN();
  double error = std::numeric_limits<double>::quiet_NaN();  ///< ||a - m'|| / ||a||, after the change
  index_t sampled = 0;          ///< rows that these two are taken from, one of each message
  double forward_seconds = 0;   ///< inside the stage's forward passes
  double backward_seconds = 0;  ///< inside its backward passes
  double coding_seconds = 0;    ///< packing and unpacking
  double waiting_seconds = 0;   ///< for neighbours and their messages: the bubble and the wire
};

namespace detail {

/// Throws usage_error where the options are unusable, or the schedule is with them.
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
                      " would wait for each other for ever; the window must be a quarter of that at least");
}

}  // namespace detail

}  // namespace terse
