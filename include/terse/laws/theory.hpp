// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "terse/laws/report.hpp"
#include "terse/laws/subject.hpp"

// Laws that convergence proofs assume: contraction, unbiasedness, variance. Expectations are means over draws, with
// bounds that a true claim exceeds about once in 10^8.

namespace terse::laws {

namespace detail {

/// Running mean, deviation and range of numbers.
class Estimate {
 public:
  void add(double x) {
    if (count_++ < 1) first_ = least_ = most_ = x;
    sum_ += x - first_;
    squares_ += (x - first_) * (x - first_);
    least_ = std::min(least_, x);
    most_ = std::max(most_, x);
  }
  double mean() const { return first_ + sum_ / count_; }
  /// Returns the margin of the mean: six standard errors.
  double margin() const {
    const double shift = sum_ / count_, variance = std::max(0.0, squares_ / count_ - shift * shift);
    return 6 * std::sqrt(variance / std::max(1.0, count_ - 1));
  }
  /// Returns the largest possible effect on the mean of unseen, rare events, each of size `range`.
  double unseen(double range) const { return count_ > 1 ? 20 * range / count_ : 0; }
  double range() const { return most_ - least_; }
  bool constant() const { return most_ <= least_; }

 private:
  double count_ = 0, first_ = 0, sum_ = 0, squares_ = 0, least_ = 0, most_ = 0;
};

inline double squared_norm(const Values& x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}
inline double squared_distance(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t e = 0; e < a.size(); ++e)
    sum += (static_cast<double>(a[e]) - static_cast<double>(b[e])) *
           (static_cast<double>(a[e]) - static_cast<double>(b[e]));
  return sum;
}

/// Successive draws of C(x) on a rank without an error.
class Compressions {
 public:
  Compressions(const Subject& subject, const Example& example)
      : subject_(subject),
        example_(example),
        arena_(subject.arena(example)),
        rank_(subject.rank(arena_)),
        message_(arena_.spread(example.messages.front())) {}
  Values operator()(int draw) {
    if (subject_.claims().accumulates && draw > 0) rank_->reset();
    const Moment when = moment(example_, static_cast<std::size_t>(draw));
    return arena_.gather(rank_->decode(rank_->encode(message_, when), when));
  }

 private:
  const Subject& subject_;
  const Example& example_;
  Arena arena_;
  std::unique_ptr<Rank> rank_;
  Values message_;
};

/// Returns true if C(x) differs between draws.
inline bool is_random(const Subject& subject, float size) {
  if (subject.claims().stochastic.value_or(false)) return true;
  const Example probe{.counts = {500}, .messages = {values(Pattern::uniform, 500, size, 1)}};
  Compressions compress(subject, probe);
  const Values first = compress(0);
  for (int draw = 1; draw < 4; ++draw)
    if (!same(first, compress(draw))) return true;
  return false;
}

/// Returns the largest observed distance between C(x) and x, relative to the largest magnitude: the size of a rare event.
inline double step_of(const Subject& subject, float size) {
  const Example probe{.counts = {100}, .messages = {values(Pattern::uniform, 100, size, 1)}};
  Compressions compress(subject, probe);
  double step = 0, largest = 0;
  for (int draw = 0; draw < 16; ++draw) {
    const Values read = compress(draw);
    for (std::size_t e = 0; e < read.size(); ++e) {
      const auto x = static_cast<double>(probe.messages.front()[e]);
      largest = std::max(largest, std::abs(x));
      step = std::max(step, std::abs(static_cast<double>(read[e]) - x));
    }
  }
  return step / largest;
}

/// Estimates E ||x - C(x)||^2 / ||x||^2 over the draws.
inline Estimate squared_error(const Subject& subject, const Example& example, int draws) {
  const Values& x = example.messages.front();
  const double norm = squared_norm(x);
  Compressions compress(subject, example);
  Estimate estimate;
  for (int draw = 0; draw < draws; ++draw) estimate.add(squared_distance(x, compress(draw)) / norm);
  return estimate;
}

}  // namespace detail

/// Checks that E ||x - C(x)||^2 <= (1 - delta) ||x||^2. Without a stated delta, checks that C(x) is no farther from x
/// than 0 is.
inline std::string contraction_violation(const Subject& subject, int draws, const Example& example) {
  const Values& x = example.messages.front();
  if (!(detail::squared_norm(x) > 0)) return "";
  const detail::Estimate error = detail::squared_error(subject, example, draws);
  const double delta = subject.claims().delta ? subject.claims().delta(example.counts) : 0;
  if (!(delta > 0 || !subject.claims().delta) || delta > 1)
    return say("delta is %g, which is not in (0, 1]", delta);
  const double least = error.mean() - error.margin() - error.unseen(error.constant() ? 1 : error.range());
  // Rounding adds an error proportional to x.
  const double most = std::pow(std::sqrt(1 - delta) + 0x1p-21, 2);
  if (least <= most) return "";
  return say("||x - C(x)||^2 / ||x||^2 %s %.7g, expected at most 1 - delta = %.7g",
             draws > 1 ? "is at least" : "=", least, 1 - delta);
}

/// Checks that E C(x) = x for each element, for the sum, and for the sum of magnitudes.
inline std::string bias_violation(const Subject& subject, double step, int draws, const Example& example) {
  const Values& x = example.messages.front();
  detail::Compressions compress(subject, example);
  std::vector<detail::Estimate> element(x.size());
  detail::Estimate sum, outwards;
  double range = 0, magnitudes = 0;
  for (const float value : x) {
    magnitudes += std::abs(static_cast<double>(value));
    range = std::max(range, step * std::abs(static_cast<double>(value)));
  }
  for (int draw = 0; draw < draws; ++draw) {
    const Values read = compress(draw);
    double off = 0, outward = 0;
    for (std::size_t e = 0; e < x.size(); ++e) {
      const double error = static_cast<double>(read[e]) - static_cast<double>(x[e]);
      element[e].add(error);
      range = std::max(range, std::abs(error));
      off += error;
      outward += x[e] < 0 ? -error : error;
    }
    sum.add(off);
    outwards.add(outward);
  }
  // 16 random bits round within 2^-17 of a step; fp32 within 2^-20 of the values.
  const double rounding = range * 0x1p-16;
  for (std::size_t e = 0; e < x.size(); ++e) {
    const double bound = element[e].margin() + element[e].unseen(range) + rounding +
                         std::abs(static_cast<double>(x[e])) * 0x1p-20;
    if (!(std::abs(element[e].mean()) <= bound))
      return say(
          "element %zu: the mean of C(x) over %d draws is off by %.4g, more than the %.2g that chance allows",
          e, draws, element[e].mean(), bound);
  }
  const struct {
    const char* name;
    const detail::Estimate& off;
  } totals[] = {{"sum", sum}, {"magnitude", outwards}};
  for (const auto& total : totals) {
    const double bound = total.off.margin() + total.off.unseen(std::max(range, total.off.range())) +
                         static_cast<double>(x.size()) * rounding + magnitudes * 0x1p-20;
    if (!(std::abs(total.off.mean()) <= bound))
      return say("the mean %s of C(x) over %d draws is off by %.4g, more than the %.2g that chance allows",
                 total.name, draws, total.off.mean(), bound);
  }
  return "";
}

/// Checks that E ||C(x) - x||^2 <= omega ||x||^2.
inline std::string variance_violation(const Subject& subject, int draws, const Example& example) {
  if (!(detail::squared_norm(example.messages.front()) > 0)) return "";
  const detail::Estimate error = detail::squared_error(subject, example, draws);
  const double omega = subject.claims().omega(example.counts), least = error.mean() - error.margin();
  if (omega >= 0 && least <= omega * (1 + 1e-4) + 1e-9) return "";
  return say("E ||C(x) - x||^2 / ||x||^2 over %d draws is at least %.7g, expected at most omega = %.7g",
             draws, least, omega);
}

/// Returns examples of one message each, with sizes and patterns that attain the bounds.
inline std::vector<Example> vectors(const Options& options, const std::vector<index_t>& lengths, int seeds) {
  std::vector<Example> all;
  const auto add = [&](std::vector<index_t> counts, Pattern pattern, std::uint64_t seed) {
    Example example{.counts = std::move(counts), .seed = options.seed};
    example.messages.push_back(values(pattern, example.elements(), options.magnitude, seed));
    all.push_back(std::move(example));
  };
  for (const index_t n : lengths)
    for (const Pattern pattern : ordinary)
      for (int s = 0; s < (pattern == Pattern::one_large ? 2 * seeds : seeds); ++s)
        add({n}, pattern, options.seed + static_cast<std::uint64_t>(s));
  add({70, 3}, Pattern::heavy, options.seed);
  return all;
}

/// Returns vectors with a large ratio of actual to allowed error, found by random search, one element at a time.
inline std::vector<Example> hunted(const Subject& subject, const Options& options,
                                   const std::vector<index_t>& lengths) {
  const auto share = [&](const Example& example) {
    if (!(detail::squared_norm(example.messages.front()) > 0)) return 0.0;
    const double delta = subject.claims().delta ? subject.claims().delta(example.counts) : 0;
    return detail::squared_error(subject, example, 1).mean() / (1 - delta + 1e-12);
  };
  std::vector<Example> all;
  for (const index_t n : lengths) {
    Example best{.counts = {n},
                 .messages = {values(Pattern::uniform, n, options.magnitude, options.seed)},
                 .seed = options.seed};
    double most = share(best);
    for (std::uint64_t t = 0; t < 400; ++t) {
      Example next = best;
      const float u = uniform(options.seed, 7, t), v = uniform(options.seed, 8, t);
      float& value = next.messages.front()[static_cast<std::size_t>((uniform(options.seed, 9, t) + 1) / 2 *
                                                                    static_cast<float>(n))];
      value = t % 4 == 0 ? 0.0F : t % 4 == 1 ? options.magnitude * u : value * (1 + v * v * v);
      const double found = share(next);
      if (found > most) {
        most = found;
        best = std::move(next);
      }
    }
    all.push_back(std::move(best));
  }
  return all;
}

/// Returns the laws that convergence proofs assume, if the compressor claims them: contraction, unbiasedness, variance.
inline std::vector<Law> theory_laws(const Subject& subject, const Options& options) {
  const Claims& claims = subject.claims();
  const bool random = detail::is_random(subject, options.magnitude);
  const int draws = random ? options.draws : 1;
  const double step = claims.unbiased ? detail::step_of(subject, options.magnitude) : 0;
  std::vector<Example> contracted =
      random ? vectors(options, {1, 2, 7, 65}, 1) : vectors(options, {1, 2, 7, 65, 300, 4097}, 4);
  if (claims.contractive && !random)
    for (Example& example : hunted(subject, options, {2, 3, 5, 16})) contracted.push_back(std::move(example));
  const std::vector<Example> spread = vectors(options, {1, 2, 3, 16, 100}, 1);
  return {
      {"contraction", claims.contractive, contracted,
       [&subject, draws](const Example& example) { return contraction_violation(subject, draws, example); }},
      {"unbiasedness", claims.unbiased, spread,
       [&subject, step, draws](const Example& example) {
         return bias_violation(subject, step, draws, example);
       }},
      {"variance", claims.unbiased && claims.omega, spread,
       [&subject, draws](const Example& example) { return variance_violation(subject, draws, example); }}};
}

}  // namespace terse::laws
