// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "terse/core/check.hpp"
#include "terse/core/layout.hpp"

namespace terse {

// The schedule of a local method, a policy. It defines the steps in which ranks send each fragment of the model, and
// the number of steps after which its mean is applied to the parameters.

/// The whole model every `period` steps; each rank waits for the mean.
struct Synchronous {
  static constexpr bool late = false;
  static void check(std::uint64_t) {}
  template <class Visit>
  void settings(Visit&&) const {}
  static std::vector<Range> cut(const Layout& layout) { return {layout.range()}; }
  static std::uint64_t offset(std::uint64_t, std::uint64_t) { return 0; }
  static std::uint64_t delay_in(std::uint64_t) { return 0; }
};

/// The old name, which version 0.2 removes.
using AllAtOnce [[deprecated("its name is Synchronous")]] = Synchronous;

/// The whole model every `period` steps; its mean is applied when the next message is sent.
struct Overlapped {
  static constexpr bool late = true;
  static void check(std::uint64_t) {}
  template <class Visit>
  void settings(Visit&&) const {}
  static std::vector<Range> cut(const Layout& layout) { return {layout.range()}; }
  static std::uint64_t offset(std::uint64_t, std::uint64_t) { return 0; }
  static std::uint64_t delay_in(std::uint64_t period) { return period; }
};

/// The old name, which version 0.2 removes.
using OnePeriodLate [[deprecated("its name is Overlapped")]] = Overlapped;

/// Fragment p of `count` after each step t with t = floor(p period / count) modulo `period`; its mean is applied
/// after step t + delay. Fragments are whole consecutive segments, as equal in size as the segments allow. Fragment
/// p contains those whose middle lies in the p-th of `count` equal parts of the model. `count` is fixed at
/// construction.
struct Streaming {
  static constexpr bool late = true;

  std::uint64_t count = 4;  ///< number of fragments, at least 1
  std::uint64_t delay = 1;  ///< steps from sending to the mean, at most `period`

  void check(std::uint64_t period) const {
    require(count >= 1 && count <= most, "a model has at least 1 fragment and at most 65536",
            static_cast<double>(count));
    require(delay <= period, "the delay of a fragment must be at most the period",
            static_cast<double>(delay));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("fragments", static_cast<double>(count));
    visit("delay", static_cast<double>(delay));
  }
  /// Returns one range per fragment, which is empty if no segment's middle lies in its part.
  std::vector<Range> cut(const Layout& layout) const {
    return layout.range().divide(static_cast<index_t>(count));
  }
  std::uint64_t offset(std::uint64_t turn, std::uint64_t period) const { return turn * period / count; }
  std::uint64_t delay_in(std::uint64_t) const { return delay; }

 private:
  static constexpr std::uint64_t most = 65536;
};

/// The old name, which version 0.2 removes.
using Fragments [[deprecated("its name is Streaming")]] = Streaming;

}  // namespace terse
