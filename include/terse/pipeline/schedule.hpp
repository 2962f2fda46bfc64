// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"

namespace terse {

/// A pass of a stage: forward or backward, of one micro-batch.
struct Action {
  bool forward = true;      ///< false: backward
  index_t micro_batch = 0;  ///< number in the step, from 0
  bool operator==(const Action&) const = default;
};

/// A schedule is the order in which a stage runs the passes of a step's micro-batches. It is a value without state:
///
///     actions(micro_batches)                           the number of passes
///     at(k, stage, stages, micro_batches)              the k-th pass
///     in_flight(stage, stages, micro_batches)          inputs that a stage keeps at once, between a forward and its
///                                                      backward pass
///     lead()                                           the largest difference of `in_flight` between neighbouring
///                                                      stages
///
/// On every stage, forward passes are in ascending order, and so are backward passes; therefore all schedules give
/// the same bits. Schedules allocate nothing, and the number of micro-batches may change from step to step.

/// All forward passes, then all backward passes. A stage keeps all micro-batches of a step in flight. Let a forward
/// pass take tf, a backward pass tb, and their messages cf and cb. A step of S stages and M micro-batches takes
///
///     S (tf + tb) + (S - 1) (cf + cb) + (M - 1) (max(tf, cf) + max(tb, cb))
///
/// Source: Huang et al., "GPipe", NeurIPS 2019, section 2.
struct GPipe {
  void check() const {}
  template <class Visit>
  void settings(Visit&&) const {}

  static constexpr index_t actions(index_t micro_batches) { return 2 * micro_batches; }
  static constexpr index_t in_flight(int, int, index_t micro_batches) { return micro_batches; }
  static constexpr index_t lead() { return 0; }
  static constexpr Action at(index_t k, int, int, index_t micro_batches) {
    return k < micro_batches ? Action{true, k} : Action{false, k - micro_batches};
  }
};

/// One forward, one backward: stage s of S starts with S - s forward passes, then alternates backward and forward
/// passes. It starts with `ahead` more forward passes for each later stage:
///
///     min(M, S - s + ahead (S - 1 - s)) in flight on stage s
///
/// and thus overlaps the round trip of messages with computation. Without communication, and if ahead = 0, a step
/// takes (M + S - 1) (tf + tb). Source: Narayanan et al., "PipeDream", SOSP 2019, section 3.2; here with a flush
/// after each step, so that all passes of a step use the same parameters.
struct OneForwardOneBackward {
  int ahead = 1;  ///< in [0, 31]; each adds a micro-batch in flight for each later stage

  void check() const {
    if (ahead < 0 || ahead > 31)
      throw usage_error("OneForwardOneBackward's ahead must be in [0, 31], not " + std::to_string(ahead));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ahead", static_cast<double>(ahead));
  }

  static constexpr index_t actions(index_t micro_batches) { return 2 * micro_batches; }
  constexpr index_t in_flight(int stage, int stages, index_t micro_batches) const {
    return std::min<index_t>(micro_batches, stages - stage + index_t{ahead} * (stages - 1 - stage));
  }
  constexpr index_t lead() const { return 1 + index_t{ahead}; }
  constexpr Action at(index_t k, int stage, int stages, index_t micro_batches) const {
    const index_t warm = in_flight(stage, stages, micro_batches), left = micro_batches - warm, l = k - warm;
    if (l < 0) return {true, k};
    if (l >= 2 * left) return {false, l - left};
    return l % 2 == 0 ? Action{false, l / 2} : Action{true, warm + l / 2};
  }
};

/// Checks a stage's passes one by one and throws usage_error if the schedule breaks its contract. Each forward pass
/// must occur once and in order, each backward pass must follow its forward pass, and at most `in_flight` may be in
/// flight. Cost O(actions).
template <class S>
void check_order(const S& schedule, int stage, int stages, index_t micro_batches) {
  const auto refuse = [&](const std::string& what) {
    throw usage_error("this schedule " + what + ", on stage " + std::to_string(stage) + " of " +
                      std::to_string(stages) + " with " + std::to_string(micro_batches) + " micro-batches");
  };
  const index_t actions = schedule.actions(micro_batches);
  if (actions != micro_batches && actions != 2 * micro_batches)
    refuse("has " + std::to_string(actions) +
           " actions, neither a forward pass of each micro-batch nor a backward one, too");
  const index_t most = schedule.in_flight(stage, stages, micro_batches);
  index_t forward = 0, backward = 0;
  for (index_t k = 0; k < actions; ++k) {
    const Action action = schedule.at(k, stage, stages, micro_batches);
    index_t& next = action.forward ? forward : backward;
    if (action.micro_batch != next || next == micro_batches)
      refuse(std::string("takes the ") + (action.forward ? "forward" : "backward") + " pass of micro-batch " +
             std::to_string(action.micro_batch) + " where " + std::to_string(next) + " is next");
    ++next;
    if (backward > forward)
      refuse("takes the backward pass of micro-batch " + std::to_string(action.micro_batch) +
             " before its forward pass");
    // Without backward passes no input is kept.
    if (actions != micro_batches && forward - backward > most)
      refuse("has " + std::to_string(forward - backward) +
             " micro-batches in flight, but in_flight() returns " + std::to_string(most));
  }
}

/// Forward passes alone, for evaluation.
struct ForwardOnly {
  void check() const {}
  template <class Visit>
  void settings(Visit&&) const {}

  static constexpr index_t actions(index_t micro_batches) { return micro_batches; }
  static constexpr index_t in_flight(int, int, index_t micro_batches) {
    return std::min<index_t>(1, micro_batches);
  }
  static constexpr index_t lead() { return 0; }
  static constexpr Action at(index_t k, int, int, index_t) { return {true, k}; }
};

}  // namespace terse
