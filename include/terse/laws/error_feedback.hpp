// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "terse/core/type_name.hpp"
#include "terse/laws/device.hpp"
#include "terse/laws/feedback_trial.hpp"
#include "terse/laws/report.hpp"

// Checks the contract of an error feedback, on one rank with a contraction.
//
//     #include <terse/laws/error_feedback.hpp>
//
//     const terse::laws::Report report = terse::laws::check_error_feedback<MyFeedback>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

namespace detail {

TERSE_NUMERICS_BEGIN

template <class F, class C>
class FeedbackLaws {
  using Trial = FeedbackTrial<F, C>;
  static constexpr bool adds_up = terse::detail::accumulates<F>();

 public:
  explicit FeedbackLaws(const F& feedback) : feedback_(feedback) {}

  /// If errors accumulate: checks that the new error is a share of the unsent part plus a share of the old error, with the
  /// same shares for all elements. Otherwise: checks that received + y - decoded = message, or that a share of
  /// message - received enters the next y.
  std::string nothing_lost() const {
    const std::vector<Seen> seen = watch<F, C>(feedback_);
    const Shares kept = adds_up ? kept_by(seen) : fit(seen, [](const Seen& one) {
      return Terms{one.message - one.received, 0, one.after - one.before + one.decoded};
    });
    if (adds_up) {
      if (!(kept.fresh > 0 && kept.old > -1e-3 && kept.fresh + kept.old < 1 + 1e-3)) return kept.text();
      return first_loss(
          seen, [&](const Seen& one) { return one.after - kept.fresh * one.left - kept.old * one.before; });
    }
    const std::string at_once =
        first_loss(seen, [](const Seen& one) { return one.message - one.received - one.left; });
    if (at_once.empty() || !(kept.fresh > 0 && kept.fresh < 1 + 1e-3)) return at_once;
    const std::string by_share = first_loss(seen, [&](const Seen& one) {
      return one.after - one.before + one.decoded - kept.fresh * (one.message - one.received);
    });
    return by_share.empty() ? "" : at_once;
  }
  /// Describes, for a note, the shares that a round keeps; "" if errors don't accumulate, or if all of it is kept.
  std::string kept() const {
    if (!adds_up) return "";
    const Shares kept = kept_by(watch<F, C>(feedback_));
    return kept.all() ? "" : kept.text();
  }
  /// Checks that the mean of received values is the message if the same message is sent in every step.
  std::string comes_back() const {
    constexpr int steps = 300;
    Trial trial(feedback_);
    const Values message = trial.message(2, 1);
    std::vector<double> sum(message.size());
    for (int step = 0; step < steps; ++step) {
      const auto sent = trial.send(message);
      trial.each([&](std::size_t i) { sum[i] += static_cast<double>(sent.received[i]); });
    }
    std::string what;
    trial.each([&](std::size_t i) {
      const double mean = sum[i] / steps;
      if (what.empty() && !(std::abs(mean - static_cast<double>(message[i])) <= 0.01))
        what = say("element %zu: the mean of %d steps is %g, the message ", i, steps, mean) + say(message[i]);
    });
    return what;
  }
  /// Checks that the compensated message of zeros stays below 4 for messages with magnitudes below 1.
  std::string bounded() const {
    Trial trial(feedback_);
    const Values zeros(trial.message(1, 1).size(), 0);
    for (std::uint64_t step = 1; step <= 500; ++step) {
      (void)trial.send(trial.message(3, step));
      std::string what;
      const Values held = trial.compensated(zeros);
      trial.each([&](std::size_t i) {
        if (what.empty() && !(std::abs(held[i]) <= 4))
          what = say("step %zu: element %zu holds ", static_cast<std::size_t>(step), i) + say(held[i]);
      });
      if (!what.empty()) return what;
    }
    return "";
  }
  /// Checks that masked elements keep no error if errors accumulate, and otherwise that they don't change.
  std::string masks() const {
    Trial trial(feedback_);
    const Values zeros(trial.message(1, 1).size(), 0);
    for (std::uint64_t step = 1; step <= 3; ++step) (void)trial.send(trial.message(4, step));
    const Values before = trial.compensated(zeros);
    std::vector<std::uint64_t> words(zeros.size() / static_cast<std::size_t>(alignment), 0x5555555555555555U);
    (void)trial.send(trial.message(4, 4), {words.data()});
    const Values after = trial.compensated(zeros);
    std::string what;
    trial.each([&](std::size_t i) {
      const float wanted = adds_up ? 0 : before[i];
      if (what.empty() && i % 2 == 1 && after[i] != wanted)
        what = say("masked element %zu keeps ", i) + say(after[i]) + ", not " + say(wanted);
    });
    return what;
  }
  /// Checks that a run resumed from a checkpoint equals the uninterrupted run.
  std::string checkpoint() const {
    Trial one(feedback_), other(feedback_);
    for (std::uint64_t step = 1; step <= 5; ++step) (void)one.send(one.message(5, step));
    const SavedState saved = one.saved();
    if (!saved.fault().empty()) return saved.fault();
    other.load(saved);
    for (std::uint64_t step = 6; step <= 10; ++step) {
      const Values message = one.message(5, step);
      const auto here = one.send(message), there = other.send(message);
      if (here.decoded != there.decoded || here.received != there.received)
        return say("step %zu: a state copied by walk() sends another message",
                   static_cast<std::size_t>(step));
    }
    return "";
  }
  /// Checks that the state is finite after a message that is not.
  std::string finite() const {
    Trial trial(feedback_);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Values message = trial.message(6, 1);
      message[3] = bad;
      (void)trial.send(message);
      const Values held = trial.compensated(Values(message.size(), 0));
      std::string what;
      trial.each([&](std::size_t i) {
        if (what.empty() && !std::isfinite(held[i])) what = say("element %zu holds ", i) + say(held[i]);
      });
      if (!what.empty()) return what + " after a message of " + say(bad);
    }
    return "";
  }

 private:
  template <class Lost>
  static std::string first_loss(const std::vector<Seen>& seen, const Lost& lost) {
    // Errors stored in fewer bits are rounded.
    const double most = terse::detail::held_by<F>() > 0 ? 0x1p-4 : 0x1p-18;
    for (const Seen& one : seen)
      if (const double loss = lost(one); !(std::abs(loss) <= most))
        return say("step %zu, element %zu: message %g, sent y = %g, read %g, and %g is lost", one.step,
                   one.element, one.message, one.y, one.decoded, loss);
    return "";
  }
  F feedback_;
};

TERSE_NUMERICS_END

}  // namespace detail

/// Checks the laws of error feedbacks with C, on one rank whose messages are below 1 in magnitude:
///
///     nothing lost      if errors accumulate (`accumulates`), the new error is a share of y - decoded plus a share of
///                       the old error, the same for all elements, with a sum of at most 1; otherwise
///                       received + y - decoded = message, or a share of message - received enters the next y; up to
///                       rounding
///     comes back        if `corrects`: the mean received in 300 steps of equal messages is the message, up to 0.01
///     bounded           the compensated message of zeros stays below 4 in 500 steps
///     masks             masked elements keep no error if errors accumulate, and otherwise don't change
///     checkpoint        parts have unique names, and a run resumed from them equals the uninterrupted run
///     finite            the state is finite after messages that are not
///     the host's bits   the emulated device gives the same bits as the host, see check_device
///
/// Shares are estimated from the feedback's steps. If a feedback does not keep everything, a note has its shares. It is
/// for feedbacks that need no exact start. To pass `comes back`, a feedback must keep nearly everything.
template <class F, class C = NearestFourBits>
Report check_error_feedback(const F& feedback = {}) {
  static_assert(terse::check_error_feedback<F>() && check_compressor<C>() &&
                terse::detail::check_feedback<C, F>());
  Report report{
      .compressor = type_name<F>(), .passed = {}, .not_applicable = {}, .failures = {}, .notes = {}};
  const detail::FeedbackLaws<F, C> laws(feedback);
  const auto judge = [&](const char* law, bool applies, auto violation) {
    if (!applies) {
      report.not_applicable.emplace_back(law);
      return;
    }
    std::string what = (laws.*violation)();
    if (what.empty())
      report.passed.emplace_back(law);
    else
      report.failures.push_back({law, what});
  };
  using Laws = detail::FeedbackLaws<F, C>;
  judge("nothing lost", true, &Laws::nothing_lost);
  if (const std::string kept = laws.kept(); !kept.empty()) report.notes.push_back(kept);
  judge("comes back", F::corrects, &Laws::comes_back);
  judge("bounded", true, &Laws::bounded);
  judge("masks", true, &Laws::masks);
  judge("checkpoint", true, &Laws::checkpoint);
  judge("finite", true, &Laws::finite);
  const Report device = check_device<C, F>({}, feedback);
  report.passed.insert(report.passed.end(), device.passed.begin(), device.passed.end());
  report.failures.insert(report.failures.end(), device.failures.begin(), device.failures.end());
  return report;
}

}  // namespace terse::laws
