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

/// A point in time. Of two at the same second the one behind fewer passes comes first, as if a pass took a moment: where passes
/// take 0 seconds, the order of messages is that of passes that take hardly any.
struct Moment {
  double seconds = 0;
  index_t passes = 0;

  friend Moment operator+(const Moment& a, double later) { return {a.seconds + later, a.passes}; }
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

}  // namespace detail

/// What a step of one stage is made of, in seconds.
struct StageTimes {
  double forward = 0;   ///< the pass of a micro-batch, with packing and unpacking
  double backward = 0;  ///< the same
  /// How long a micro-batch's message to the next stage occupies the link; 0 at the last.
  double sends_forward = 0;
  double sends_backward = 0;  ///< how long that to the stage before does; 0 at the first
};

/// Seconds that a step of `micro_batches` takes from the first pass to the last, found by going through the passes one by
/// one. times(stage, micro_batch) is a StageTimes: neither stages nor micro-batches have to be equal, as where padding doesn't
/// travel. A stage takes its passes in the schedule's order, each once its input is there. Its link carries one message out at a
/// time and one in, as `Delayed` has it, in the order in which they leave, while the stage computes on; `latency` is on top of
/// that. With GPipe and equal micro-batches it is the closed form that stands there. It is a lower bound where `window` holds a
/// stage back. Cost O(stages^2 x actions).
///
/// Throws usage_error for times that are negative or not finite, and where a schedule waits for what it itself holds up.
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
    std::vector<Moment> activations, gradients;  // when each of them is there
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
    // What can begin first, a pass or a message.
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
    if (!(begin < never)) throw usage_error("this schedule's stages wait for each other for ever");
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
