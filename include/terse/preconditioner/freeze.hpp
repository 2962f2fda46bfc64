// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "terse/core/check.hpp"
#include "terse/executor/statistic.hpp"

// Rules for the change of a two-stage method to its second stage, see Staged.

namespace terse {

/// A rule that decides when the first stage is over. A copyable policy with check(), settings(visit), its state `Watch<E>`,
/// and optionally `static constexpr const char* watches`, the name of a buffer that it reads. A watch has
///
///     Watch(rule, executor, range)                 range: the elements that the second stage compresses
///     check(rule)                                  throws usage_error if the changed rule requires more memory
///     due(rule, executor, step, buffer) -> bool    after step t = 1, 2, ... of the first stage: whether it was the last;
///                                                  buffer is nullptr unless the rule watches one
///     walk(visit)
///
/// and optionally `bool skipped() const`, which returns true if there is no first stage.
template <class S>
concept StageSwitch = std::copyable<S> && requires(const S& rule) {
  rule.check();
};

namespace detail {

struct Sum : SumOfSquares {
  TERSE_HD static void terms(float x, float (&term)[1]) { term[0] = x; }
};

struct Read {
  const float* from;
  using StreamsOf = Read;
  TERSE_HD auto streams() { return reads(from); }
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const { return {from[i], 0}; }
};

}  // namespace detail

/// The first stage ends after step `step`: it has steps 1 ... step; 0 for no first stage. There is no default, since no number is
/// right for all training runs.
struct AtStep {
  static constexpr std::uint64_t unset = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t step = unset;  ///< the last step of the first stage; 0 for no first stage. Required

  void check() const {
    if (step == unset)
      throw usage_error("the end of the first stage is not set: give AtStep its step, as in .when = {1000}");
  }
  bool skipped() const { return step == 0; }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("freeze_step", static_cast<double>(step));
  }

  template <Executor E>
  struct Watch {
    Watch(const AtStep&, E, const Range&) {}
    static void check(const AtStep&) {}
    static bool due(const AtStep& rule, E, std::uint64_t step, const float*) { return step >= rule.step; }
    template <class Visit>
    void walk(Visit&&) {}
  };
};

/// The first stage ends when the L1 norm a(t) of the variance has settled: min(a(t) / a(t - horizon), a(t - horizon) / a(t)) >=
/// threshold, at the first such step t > max(learning_rate_warmup_steps, horizon). horizon = 1 / (1 - beta2) is the time constant
/// of the variance. State: horizon + 1 floats. On a device, the host waits for this norm in each step of the first stage. Source:
/// Tang et al., "1-bit Adam", ICML 2021, section 7.1.
struct VarianceRatio {
  static constexpr std::uint64_t longest_horizon = std::uint64_t{1} << 30;  // a float each
  static constexpr const char* watches = "variance";

  float threshold = 0.96F;       ///< in (0, 1]; a value nearer to 1 makes the first stage longer
  std::uint64_t horizon = 1000;  ///< number of steps: the time constant of the variance
  std::uint64_t learning_rate_warmup_steps = 0;  ///< warm-up of the schedule; the first stage ends after it

  void check() const {
    if (horizon < 1 || horizon > longest_horizon || !(threshold > 0 && threshold <= 1))
      throw usage_error(
          "freeze = VarianceRatio needs a horizon of 1 to 2^30 steps and a threshold in (0, 1]");
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("freeze_threshold", static_cast<double>(threshold));
    visit("freeze_horizon", static_cast<double>(horizon));
    visit("learning_rate_warmup_steps", static_cast<double>(learning_rate_warmup_steps));
  }

  template <Executor E>
  class Watch {
   public:
    Watch(const VarianceRatio& rule, E executor, const Range& range)
        : range_(range),
          norms_(static_cast<index_t>(rule.horizon) + 1),
          scratch_(reduction_scratch<detail::Sum>(executor, range, Units{0, true}), uninitialized),
          total_(1),
          bad_(1) {}

    void check(const VarianceRatio& rule) const {
      if (norms_.size() != static_cast<index_t>(rule.horizon) + 1)
        throw usage_error(
            "VarianceRatio, and its horizon, are taken at construction and can't be changed to " +
            std::to_string(rule.horizon));
    }
    bool due(const VarianceRatio& rule, E executor, std::uint64_t step, const float* variance) {
      const auto place = [&](std::uint64_t t) { return static_cast<index_t>(t % (rule.horizon + 1)); };
      reduce<detail::Sum>(executor, range_, Units{0, true}, NoMask{}, NoPackets{}, detail::Read{variance},
                          scratch_.all(), total_.all(), bad_.data());
      float now = 0;
      fetch(executor, in<E>(total_.all()), view<float>(&now, 1));
      norms_[place(step)] = now;
      if (step <= rule.horizon || step <= rule.learning_rate_warmup_steps) return false;
      const float then = norms_[place(step - rule.horizon)];
      return then > 0 && now > 0 && std::min(now / then, then / now) >= rule.threshold;
    }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("variance_norms", norms_.all(), index_t{0});
    }

   private:
    Range range_;
    buffer<float> norms_;
    buffer<float, typename E::memory> scratch_, total_;
    buffer<std::uint32_t, typename E::memory> bad_;
  };
};

/// AtStep or VarianceRatio, chosen at run time.
struct Freeze {
  static constexpr const char* watches = VarianceRatio::watches;

  std::variant<AtStep, VarianceRatio> rule = VarianceRatio{};  ///< the end of the first stage

  void check() const {
    if (const auto* at = std::get_if<AtStep>(&rule); at != nullptr && at->step < 1)
      throw usage_error("freeze = AtStep{0}: at least one full-precision step is needed to learn a variance");
    std::visit([](const auto& chosen) { chosen.check(); }, rule);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    std::visit([&](const auto& chosen) { chosen.settings(visit); }, rule);
  }

  template <Executor E>
  class Watch {
   public:
    Watch(const Freeze& freeze, E executor, const Range& range) {
      if (freeze.ratio() != nullptr) ratio_.emplace(*freeze.ratio(), executor, range);
    }

    void check(const Freeze& freeze) const {
      const VarianceRatio* ratio = freeze.ratio();
      if (ratio != nullptr && !ratio_)
        throw usage_error(
            "VarianceRatio, and its horizon, are taken at construction, and AtStep can't be changed to it");
      if (ratio != nullptr) ratio_->check(*ratio);
    }
    bool due(const Freeze& freeze, E executor, std::uint64_t step, const float* variance) {
      if (freeze.ratio() != nullptr) return ratio_->due(*freeze.ratio(), executor, step, variance);
      return step >= std::get<AtStep>(freeze.rule).step;
    }
    template <class Visit>
    void walk(Visit&& visit) {
      if (ratio_) ratio_->walk(visit);
    }

   private:
    std::optional<VarianceRatio::Watch<E>> ratio_;
  };

 private:
  const VarianceRatio* ratio() const { return std::get_if<VarianceRatio>(&rule); }
};

namespace detail {

/// Reports, with a readable static_assert, the reason why a preconditioner can't be used in a 1-bit method.
template <class P>
constexpr bool check_freezes() {
  static_assert(
      requires(const P& policy) { Freeze{policy.freeze}; },
      "terse: the preconditioner of a 1-bit method has a member `freeze` (AtStep or VarianceRatio), the end "
      "of its first stage, as FrozenVariance has; use others in Staged");
  return true;
}

}  // namespace detail

}  // namespace terse
