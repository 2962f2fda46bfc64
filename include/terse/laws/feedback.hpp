// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/config.hpp"
#include "terse/executor/concept.hpp"
#include "terse/laws/report.hpp"
#include "terse/laws/subject.hpp"

// Laws for error feedback that accumulates.

namespace terse::laws {

TERSE_NUMERICS_BEGIN

/// Checks that the error is fl(y - C(y)), with the compensated message y and the decoded message C(y). It must hold to
/// the last bit. If the error is stored in fewer bits, it must hold up to the rounding of storage. If the feedback
/// keeps shares of this error and of the old one, it must hold up to rounding. Masked elements keep no error.
inline std::string feedback_violation(const Subject& subject, const Example& example) {
  const Claims& claims = subject.claims();
  const Arena arena = subject.arena(example);
  const auto rank = subject.rank(arena);
  const Values zeros(at(arena.layout.size()), 0);
  for (std::size_t m = 0; m < example.messages.size(); ++m) {
    const Values message = arena.spread(example.messages[m]);
    const Values wanted = arena.gather(rank->compensated(message)),
                 before = arena.gather(rank->compensated(zeros));
    const Sent sent = rank->encode(message, moment(example, m));
    const Values decoded = arena.gather(rank->decode(sent, moment(example, m)));
    const Values after = arena.gather(rank->compensated(zeros));
    Values expected(after.size(), 0);
    float largest = 0;
    for (std::size_t e = 0; e < after.size(); ++e) {
      if (arena.compressed[e] == 0 || !example.keeps(static_cast<index_t>(e))) continue;
      const float y = is_finite(wanted[e]) ? wanted[e] : before[e];
      expected[e] = claims.fresh * (y - decoded[e]) + claims.old * before[e];
      largest = std::max(largest, magnitude(expected[e]));
    }
    for (std::size_t e = 0; e < after.size(); ++e) {
      const float most = !claims.exact       ? largest / 64 + 0x1p-100F
                         : claims.fresh == 1 ? 0
                                             : largest * 0x1p-20F;
      const bool right = magnitude(after[e] - expected[e]) <= most;
      if (!right)
        return say("after message %zu element %zu: sent y = ", m, e) + say(wanted[e]) + ", receivers read " +
               say(decoded[e]) + ", expected the error " + say(expected[e]) + ", got " + say(after[e]);
    }
  }
  return "";
}

/// Checks, for sums over steps of several ranks' messages, that the decoded sum lags by exactly the mean error, and that
/// no rank's error keeps growing. Message r is sent by rank r. It is the same in all steps or, if the example's `step` is
/// above 1, is multiplied by a noise of mean 1.
inline std::string tracking_violation(const Subject& subject, const Options& options,
                                      const Example& example) {
  constexpr double growth =
      1.5;  // between the halves; errors that grow like sqrt(steps) give 1.73, like steps 2.65
  const Claims& claims = subject.claims();
  const Arena arena = subject.arena(example);
  const std::size_t ranks = example.messages.size(), n = at(example.elements());
  const auto weight = 1 / static_cast<float>(ranks);
  const Values zeros(at(arena.layout.size()), 0);
  std::vector<std::unique_ptr<Rank>> rank;
  for (std::size_t r = 0; r < ranks; ++r) rank.push_back(subject.rank(arena));
  std::vector<double> behind(n);  // sum of means of messages - sum of decoded means
  std::vector<double> early(ranks), late(ranks), largest_message(ranks);
  std::vector<Values> error(ranks);
  double rounding = 0;
  for (int t = 0; t < options.tracking_steps; ++t) {
    double largest = 0;
    std::vector<Sent> sent;
    std::vector<std::vector<const std::byte*>> begins(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      Values message = example.messages[r];
      double norm = 0;
      for (std::size_t e = 0; e < n; ++e) {
        if (example.step > 1)
          message[e] *= 1 + 3 * uniform(example.seed + r, 6 + static_cast<std::uint64_t>(t), e);
        const auto value = static_cast<double>(message[e]);
        behind[e] += static_cast<double>(weight) * value;
        largest = std::max(largest, std::abs(value));
        norm += value * value;
      }
      largest_message[r] = std::max(largest_message[r], std::sqrt(norm));
      sent.push_back(
          rank[r]->encode(arena.spread(message),
                          {example.seed, example.step + static_cast<std::uint64_t>(t), static_cast<int>(r)}));
      for (const Packet& packet : sent.back()) begins[r].push_back(packet.data());
      if (rank[r]->take_bad())
        return say("in step %d of %d rank %zu has left the range of finite numbers", t + 1,
                   options.tracking_steps, r);
      error[r] = arena.gather(rank[r]->compensated(zeros));
      for (const float value : error[r])
        (t < options.tracking_steps / 2 ? early : late)[r] +=
            static_cast<double>(value) * static_cast<double>(value);
    }
    Values sum;
    rank.front()->decode(begins, std::vector<float>(ranks, weight),
                         {example.seed, example.step + static_cast<std::uint64_t>(t), 0}, sum);
    const Values mean = arena.gather(sum);
    for (std::size_t e = 0; e < n; ++e) {
      behind[e] -= static_cast<double>(mean[e]);
      largest = std::max(largest, std::abs(static_cast<double>(mean[e])));
    }
    for (const Values& values : error)
      for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
    rounding += largest * 0x1p-22;
  }
  for (std::size_t e = 0; e < n && claims.exact && claims.fresh == 1; ++e) {
    double kept = 0;
    for (std::size_t r = 0; r < ranks; ++r)
      kept += static_cast<double>(weight) * static_cast<double>(error[r][e]);
    if (!(std::abs(behind[e] - kept) <= rounding))
      return say("after %d steps element %zu lags the mean of the messages by %g, but the mean error is %g",
                 options.tracking_steps, e, behind[e], kept);
  }
  // Errors may take long to converge; a contraction bounds the norm to which they converge.
  const auto mean_norm = [&](double squares) { return std::sqrt(2 * squares / options.tracking_steps); };
  const double left = claims.contractive && claims.delta ? std::sqrt(1 - claims.delta(example.counts)) : 1;
  for (std::size_t r = 0; r < ranks; ++r) {
    const double first = mean_norm(early[r]), second = mean_norm(late[r]);
    const bool settled = left < 1 && second <= 1.5 * left / (1 - left) * largest_message[r];
    if (!(second <= growth * first || settled))
      return say(
          "rank %zu's error grows: its norm is %g in the first half of %d steps and %g in the second%s", r,
          first, options.tracking_steps, second,
          claims.contractive && !claims.delta
              ? "; if the compressor is a contraction whose errors settle later, state `static double "
                "delta(index_t n)`, the least share of |x|^2 that n elements keep, and the law takes its "
                "bound, or give more Options::tracking_steps"
              : "");
  }
  return "";
}

TERSE_NUMERICS_END

/// Returns the laws for error feedback that accumulates: it keeps the undecoded part, and receivers don't lag.
inline std::vector<Law> feedback_laws(const Subject& subject, const Options& options) {
  const Claims& claims = subject.claims();
  std::vector<Example> tracked;
  const auto track = [&](std::vector<index_t> counts, Pattern first, std::uint64_t step) {
    Example example{.counts = std::move(counts), .seed = options.seed, .step = step};
    for (const Pattern pattern : {first, Pattern::uniform, Pattern::offset})
      example.messages.push_back(values(pattern, example.elements(), options.magnitude,
                                        options.seed + 10 * example.messages.size()));
    tracked.push_back(std::move(example));
  };
  track({3}, Pattern::one_large, 2);
  track({90}, Pattern::two_sizes, 1);
  track({90}, Pattern::heavy, 2);
  track({65, 20}, Pattern::constant, 2);
  return {{"feedback law", claims.accumulates, examples(options.seed, options.magnitude, 4),
           [&subject](const Example& example) { return feedback_violation(subject, example); }},
          {"mean tracking", claims.accumulates && claims.tracks, tracked,
           [&subject, options](const Example& example) {
             return tracking_violation(subject, options, example);
           }}};
}

}  // namespace terse::laws
