// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/type_name.hpp"
#include "terse/laws/policy.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/rule_trial.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/preconditioner/elementwise.hpp"

// Checks the contract of a momentum correction or a preconditioner, on which Averaging relies.
//
//     #include <terse/laws/rule.hpp>
//
//     const terse::laws::Report report = terse::laws::check_preconditioner<MyPreconditioner>();
//     if (!report) std::puts(report.text().c_str());

namespace terse::laws {

TERSE_NUMERICS_BEGIN

namespace detail {

template <class M, class P>
class RuleLaws {
 public:
  RuleLaws(const M& momentum, const P& preconditioner, const Options& options)
      : momentum_(momentum), preconditioner_(preconditioner), options_(options) {}

  std::string names() const {
    return names_fault(M::state, P::state, terse::detail::layer_state_of<M>(),
                       terse::detail::layer_state_of<P>());
  }
  std::string settings() const { return settings_fault(momentum_, preconditioner_); }

  /// Compares float with double, on uncompressed messages.
  std::string precision(bool exact) const {
    RuleTrial<float, M, P> trial(momentum_, preconditioner_);
    RuleTrial<double, M, P> oracle(momentum_, preconditioner_);
    double largest = 0;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const float g = gradient(step, 0);
      trial.begin(step, g);
      oracle.begin(step, static_cast<double>(g));
      const float message = exact ? g : trial.message();
      const double wanted_message = exact ? static_cast<double>(g) : oracle.message();
      if (!exact) {
        trial.sent(message);
        oracle.sent(wanted_message);
      }
      const Made<float> made = trial.receive(message, exact);
      const Made<double> wanted = oracle.receive(wanted_message, exact);
      largest = std::max({largest, std::abs(wanted.step), std::abs(wanted.direction)});
      const double error = std::max(std::abs(static_cast<double>(made.direction) - wanted.direction),
                                    std::abs(static_cast<double>(made.step) - wanted.step));
      if (!std::isfinite(made.direction) || !std::isfinite(made.step))
        return "step " + std::to_string(step) + ": direction or step is not finite";
      if (!(error <= 1e-4 * largest))
        return "step " + std::to_string(step) + (exact ? " of exact means" : "") + ": direction " +
               std::to_string(made.direction) + " and step " + std::to_string(made.step) +
               " in float, in double " + std::to_string(wanted.direction) + " and " +
               std::to_string(wanted.step);
    }
    return "";
  }

  /// Checks that two ranks with different gradients and the same mean take the same step.
  std::string agreement(bool exact) const {
    RuleTrial<float, M, P> one(momentum_, preconditioner_), other(momentum_, preconditioner_);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      one.begin(step, gradient(step, 0));
      other.begin(step, gradient(step, 1));
      const float first = exact ? gradient(step, 0) : one.message();
      const float second = exact ? gradient(step, 1) : other.message();
      if (!exact) {
        one.sent(first);
        other.sent(second);
      }
      const float mean = (first + second) / 2;
      const Made<float> here = one.receive(mean, exact), there = other.receive(mean, exact);
      if (here.direction != there.direction || here.step != there.step)
        return "step " + std::to_string(step) + (exact ? " of exact means" : "") +
               ": from the same mean one rank makes " + std::to_string(here.step) + " and another " +
               std::to_string(there.step) + ", since what they have of their own enters it";
      if (exact && !one.is_same(other))
        return "step " + std::to_string(step) + " of exact means: buffers differ between ranks";
    }
    return "";
  }

  /// Checks that buffers stay finite after a gradient that is not, and after the largest means that count as finite.
  std::string finiteness() const {
    constexpr float huge = 0x1p62F, infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      RuleTrial<float, M, P> trial(momentum_, preconditioner_);
      trial.begin(1, bad);
      (void)trial.message();
      if (!trial.is_finite())
        return "a buffer is not finite after the message of " + std::to_string(bad) +
               ": keep the old value there, as in `e[0] = keep_if(is_finite(u), u, e[0])`, and return u";
    }
    RuleTrial<float, M, P> trial(momentum_, preconditioner_);
    RuleTrial<float, M, P> exactly(momentum_, preconditioner_);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const float mean = step % 3 == 0 ? -huge : huge;
      trial.begin(step, mean);
      exactly.begin(step, mean);
      (void)trial.message();
      (void)trial.receive(mean, false);
      (void)exactly.receive(mean, true);
      if (!trial.is_finite() || !exactly.is_finite())
        return "a buffer is not finite after " + std::to_string(step) + " means of 2^62";
    }
    return "";
  }

  static constexpr bool may_rest = M::facts.rests_at_zero && P::facts.rests_at_zero;
  /// Checks that rules with `rests_at_zero` do not change at a mean of 0, after any history.
  std::string rest() const {
    RuleTrial<float, M, P> trial(momentum_, preconditioner_);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      trial.begin(step, gradient(step, 0));
      const float message = trial.message();
      trial.sent(message / 2);
      (void)trial.receive(message / 2, false);
      if (!trial.rests())
        return "step " + std::to_string(step) +
               ": a mean of 0 changes a buffer or makes a step, which contradicts facts.rests_at_zero";
    }
    return "";
  }

 private:
  static constexpr std::uint64_t steps = 60;

  float gradient(std::uint64_t step, int rank) const {
    // Some elements have no gradient at first, or in some steps.
    if (step <= 2 || step % 7 == 0) return 0;
    const Draw draw = Draw::local(options_.seed, rank, step, Purpose::user);
    return options_.magnitude * (static_cast<float>(draw.bits(0) >> 40) * 0x1p-23F - 1);
  }

  M momentum_;
  P preconditioner_;
  Options options_;
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// Lists the optional members of the rules. A misspelled member is never called, and can't be distinguished from a
/// helper.
template <class M, class P>
std::vector<std::string> optional_members() {
  using Momentum = typename M::template Rule<float>;
  using Preconditioning = typename P::template Rule<float>;
  using Element = SomeElement<float>;
  const auto has = [](bool own, const char* name, const char* otherwise) {
    return std::string(name) + (own ? "its own" : otherwise);
  };
  std::vector<std::string> notes;
  if constexpr (!std::is_same_v<M, NoMomentum>) {
    notes.push_back(has(
        requires(const Momentum& r, const Element& e) { r.message(e); }, "message: ", "the gradient"));
    notes.push_back(has(
        requires(const Momentum& r, const Element& e) { r.exact_direction(e, 0.0F); },
        "exact_direction: ", "direction"));
    notes.push_back(has(
        requires(const Momentum& r, const Element& e) { r.sent(e, true, 0.0F); }, "sent: ", "none"));
    notes.push_back(has(
        requires(const Momentum& r, const Element& e) { r.mean_gradient(e, 0.0F); },
        "mean_gradient: ", "the mean"));
    notes.push_back(has(
        requires(const Momentum& r) { r.at_step(1); }, "at_step: ", "no scalars"));
  }
  if constexpr (!std::is_same_v<P, NoPreconditioner>) {
    notes.push_back(has(
        requires(const Preconditioning& r, const Element& e) { r.denominator(e); }, "denominator: ", "none"));
    notes.push_back(has(
        requires(const Preconditioning& r, const Element& e) { r.takes_part(e); }, "takes_part: ", "always"));
    notes.push_back(has(
        requires(const Preconditioning& r) { r.at_step(1); }, "at_step: ", "no scalars"));
  }
  return notes;
}

}  // namespace detail

/// Checks the laws on both rules together:
///
///     names         buffers have unique names
///     settings      hyper-parameters are visited
///     bounds        the rules access only buffers and scalars that the policies have named
///     precision     60 steps in float equal those in double, up to 1e-4
///     agreement     ranks with different gradients take the same step from the same mean; for exact means their buffers
///                   are equal, too
///     finite        buffers stay finite
///     rest          if both rules state `rests_at_zero`, a mean of 0 changes nothing
///
/// The report's notes list the rules' optional members.
template <class M, class P>
Report check_rules(const M& momentum, const P& preconditioner, const Options& options = {}) {
  static_assert(check_momentum_correction<M>() && check_preconditioner<P>());
  const detail::RuleLaws<M, P> laws(momentum, preconditioner, options);
  Report report{.compressor = type_name<M>() + " x " + type_name<P>(),
                .passed = {},
                .not_applicable = {},
                .failures = {},
                .notes = detail::optional_members<M, P>()};
  detail::Judge judge(report);
  judge("names", [&] { return laws.names(); });
  judge("settings", [&] { return laws.settings(); });
  judge("precision", [&] {
    const std::string what = laws.precision(false);
    return what.empty() ? laws.precision(true) : what;
  });
  judge("agreement", [&] {
    const std::string what = laws.agreement(false);
    return what.empty() ? laws.agreement(true) : what;
  });
  judge("finite", [&] { return laws.finiteness(); });
  if constexpr (detail::RuleLaws<M, P>::may_rest)
    judge("rest", [&] { return laws.rest(); });
  else
    report.not_applicable.emplace_back("rest");
  judge.bounds();
  return report;
}
/// Checks the laws on a momentum correction, with NoPreconditioner.
template <class M>
Report check_momentum_correction(const M& policy = {}, const Options& options = {}) {
  return check_rules(policy, NoPreconditioner{}, options);
}
/// Checks the laws on a preconditioner, with NoMomentum.
template <class P>
Report check_preconditioner(const P& policy = {}, const Options& options = {}) {
  return check_rules(NoMomentum{}, policy, options);
}

}  // namespace terse::laws
