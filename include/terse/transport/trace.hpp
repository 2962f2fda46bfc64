// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terse/core/separate.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// A rank's record of its messages and waits, which Traced fills. It keeps as many of the last events as it has room for, and sums over
/// all events. `step()` counts steps; the program calls it at the end of each step. Allocates at construction only.
class Trace {
  using Clock = std::chrono::steady_clock;

 public:
  /// The rank of an event without a particular rank: a collective, or a transport whose tickets don't say for which
  /// rank they wait.
  static constexpr int unknown = -1;

  /// A batch of messages from its start to its end, and the part of that time in which its rank waited for it.
  struct Event {
    Phase phase = Phase::setup;
    int awaited = unknown;         ///< the rank whose message was the last that was missing during the wait
    std::uint64_t step = 0;        ///< steps that had ended when the batch began
    std::uint64_t bytes_sent = 0;  ///< by this rank, over all peers
    double begin = 0;              ///< seconds since the trace was made
    double seconds = 0;            ///< seconds from its start to its end
    double waited = 0;             ///< the last of these seconds, in which the rank did nothing else
  };
  /// Waits for one rank.
  struct Waits {
    double seconds = 0;       ///< waited for it
    std::uint64_t steps = 0;  ///< steps in which this wait was the longest
  };

  /// A trace of rank `rank` of `ranks`, with room for `events` events, at least 1.
  explicit Trace(int rank, int ranks, std::size_t events);

  /// Ends a step.
  void step();
  std::uint64_t steps() const { return steps_; }
  int rank() const { return rank_; }
  /// Returns the seconds since the trace was made.
  double now() const { return std::chrono::duration<double>(Clock::now() - made_).count(); }
  void add(const Event& event);

  /// Returns the waits for each rank and, at the end, those for no particular rank.
  std::span<const Waits> waits() const { return waits_; }
  /// Returns the events that are still kept, the oldest first.
  std::vector<Event> events() const;
  /// Returns the number of events that were replaced by newer ones.
  std::uint64_t lost() const { return added_ < events_.size() ? 0 : added_ - events_.size(); }

  /// Returns the events in the Trace Event Format, without its brackets. Each rank is a process, each wait is a slice, named by its phase
  /// and the rank that was waited for, and each batch is an asynchronous slice. `shift` is added to all times, in seconds.
  std::string json(double shift) const;

 private:
  std::size_t place_of(int awaited) const {
    return awaited == unknown ? waits_.size() - 1 : static_cast<std::size_t>(awaited);
  }

  Clock::time_point made_ = Clock::now();
  int rank_;
  std::uint64_t steps_ = 0, added_ = 0;
  std::vector<Event> events_;
  std::vector<Waits> waits_;
  std::vector<double> in_step_;  // seconds of waits in this step, in the order of waits_
};

/// Returns a sentence for each rank for which others have waited, the longest wait first: seconds of each other rank, and the share of
/// steps in which that wait was its longest. `all` has the waits of one rank after the other, see Trace::waits, over `steps` steps.
std::string who_was_waited_for(std::span<const Trace::Waits> all, int ranks, std::uint64_t steps);

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/transport/trace.ipp"
#endif
