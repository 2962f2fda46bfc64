// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/pipeline/concept.hpp"

namespace terse {

namespace detail {

/// A point in time. Of two moments with equal seconds, the one after fewer passes is the earlier one: thus passes of
/// 0 seconds give the message order of very short passes.
struct Moment {
  double seconds = 0;
  index_t passes = 0;

  friend Moment operator+(const Moment& a, double later) { return {a.seconds + later, a.passes}; }
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

}  // namespace detail

/// Times of one micro-batch on one stage, in seconds.
struct StageTimes {
  double forward = 0;   ///< forward pass, with packing and unpacking
  double backward = 0;  ///< backward pass, with packing and unpacking
  /// Time for which a message to the next stage occupies the link; 0 at the last stage.
  double sends_forward = 0;
  double sends_backward = 0;  ///< link time of a message to the previous stage; 0 at the first stage
};

/// Returns the seconds of a step of `micro_batches`, from the beginning of the first pass to the end of the last one, by
/// simulation of all passes. times(stage, micro_batch) returns a StageTimes. Stages and micro-batches may differ, for
/// example because padding is not sent.
///
/// A stage runs its passes in the schedule's order, each as soon as its input has arrived. As in `Delayed`, a stage's
/// link carries one outgoing and one incoming message at a time, in the order of departure, while the stage computes.
/// `latency` is added to each message. With GPipe and equal micro-batches the result is equal to the formula in GPipe's
/// description. It is a lower bound if a stage must wait because of `window`. Cost O(stages^2 x actions).
///
/// Throws usage_error for times that are negative or not finite, and for a schedule that deadlocks.
template <Schedule Plan, std::invocable<int, index_t> Times>
double makespan(const Plan& schedule, int count, index_t micro_batches, const Times& times,
                double latency = 0) {
  schedule.check();
  if (micro_batches < 0)
    throw usage_error("a step can't have " + std::to_string(micro_batches) + " micro-batches");
  const auto check = [](double seconds, const char* what) {
    if (!(seconds >= 0 && seconds <= std::numeric_limits<double>::max()))
      throw usage_error(std::string(what) + " can't take " + std::to_string(seconds) + " seconds");
  };
  for (int s = 0; s < count; ++s)
    for (index_t j = 0; j < micro_batches; ++j) {
      const StageTimes one = times(s, j);
      check(one.forward, "a forward pass");
      check(one.backward, "a backward pass");
      check(one.sends_forward, "a message forward");
      check(one.sends_backward, "a message backward");
    }
  check(latency, "a message's latency");
  for (int s = 0; s < count; ++s) check_order(schedule, s, count, micro_batches);
  using detail::Moment;
  constexpr Moment never{std::numeric_limits<double>::infinity()};
  const auto at = [](auto index) { return static_cast<std::size_t>(index); };
  struct Message {
    Action pass;
    Moment ready;
  };
  struct Stage {
    std::vector<Moment> activations, gradients;  // arrival times
    std::deque<Message> leaving;
    index_t taken = 0;
    Moment free, out_free, in_free;

    std::vector<Moment>& inputs(bool forward) { return forward ? activations : gradients; }
  };
  std::vector<Stage> all(at(count));
  for (Stage& stage : all) {
    stage.activations.assign(at(micro_batches), never);
    stage.gradients.assign(at(micro_batches), never);
  }
  if (!all.empty()) {
    all.front().activations.assign(at(micro_batches), {});
    all.back().gradients.assign(at(micro_batches), {});  // as soon as it has the loss
  }
  double end = 0;
  index_t passes = count * schedule.actions(micro_batches);
  while (passes > 0) {
    // Finds the pass or message that can begin first.
    int first = 0;
    bool is_pass = true;
    Moment begin = never;
    for (int s = 0; s < count; ++s) {
      Stage& stage = all[at(s)];
      if (stage.taken < schedule.actions(micro_batches)) {
        const auto [forward, j] = schedule.at(stage.taken, s, count, micro_batches);
        const Moment here = std::max(stage.inputs(forward)[at(j)], stage.free);
        if (here < begin) begin = here, first = s, is_pass = true;
      }
      if (!stage.leaving.empty()) {
        const Moment here = std::max(stage.leaving.front().ready, stage.out_free);
        if (here < begin) begin = here, first = s, is_pass = false;
      }
    }
    if (!(begin < never)) throw usage_error("this schedule's stages wait for each other forever");
    Stage& stage = all[at(first)];
    if (is_pass) {
      const Action pass = schedule.at(stage.taken++, first, count, micro_batches);
      const StageTimes took = times(first, pass.micro_batch);
      stage.free = begin + (pass.forward ? took.forward : took.backward);
      ++stage.free.passes;
      end = std::max(end, stage.free.seconds);
      const int to = first + (pass.forward ? 1 : -1);
      if (to >= 0 && to < count) stage.leaving.push_back({pass, stage.free});
      --passes;
    } else {
      const Action pass = stage.leaving.front().pass;
      stage.leaving.pop_front();
      Stage& neighbour = all[at(first + (pass.forward ? 1 : -1))];
      const StageTimes took = times(first, pass.micro_batch);
      const double takes = pass.forward ? took.sends_forward : took.sends_backward;
      stage.out_free = begin + takes;
      neighbour.in_free = std::max(begin + latency, neighbour.in_free) + takes;
      neighbour.inputs(pass.forward)[at(pass.micro_batch)] = neighbour.in_free;
    }
  }
  return end;
}

/// Returns the seconds of a step whose micro-batches are all equal.
template <Schedule Plan>
double makespan(const Plan& schedule, std::span<const StageTimes> stages, index_t micro_batches,
                double latency = 0) {
  return makespan(
      schedule, static_cast<int>(stages.size()), micro_batches,
      [&](int stage, index_t) { return stages[static_cast<std::size_t>(stage)]; }, latency);
}

}  // namespace terse
